"""Training methods that sparsification is added to: from scratch, by transfer, in a public subspace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Protocol

from sordino import models
from sordino.data import Facts, load
from sordino.data.standard import root
from sordino.errors import DataError
from sordino.kernel.sampling import steps_for, steps_per_epoch
from sordino.models import Built
from sordino.training.evaluation import Public
from sordino.training.transfer import EmbeddingPerturbation, PretrainedNetwork, TrainedPart, fit_embedded, pretrain
from sordino.training.transfer.pretraining import VERSION
from sordino_papers.harness.entry import Measurement
from sordino_papers.harness.rows import ExperimentRows
from sordino_papers.harness.training import DELTA, DpSgdTrial, Sparsity, outcome_of


class ComparedMethod(Protocol):
    """Trains a network to an epsilon, with sparsification to a final rate, or without it at rate 0."""

    def __hash__(self) -> int: ...

    def built(self, facts: Facts, seed: int) -> Built: ...

    def train(self, rows: ExperimentRows, epsilon: float, rate: float, seed: int, out: Path) -> Measurement: ...

    def quick(self) -> ComparedMethod:
        """A version that takes seconds, on few rows."""
        ...


@dataclass(frozen=True)
class DpSgdMethod:
    """DP-SGD with Poisson sampling."""

    kind: ClassVar[str] = "dp-sgd"
    trial: DpSgdTrial

    def built(self, facts: Facts, seed: int) -> Built:
        return self.trial.built(facts, seed)

    def train(self, rows: ExperimentRows, epsilon: float, rate: float, seed: int, out: Path) -> Measurement:
        sparsified = replace(self.trial, sparsity=Sparsity(rate) if rate else None)
        return sparsified.to_epsilon(rows, epsilon, seed, out)

    def quick(self) -> DpSgdMethod:
        return DpSgdMethod(replace(self.trial, batch_size=32, epochs=2.0, start=self.trial.start.quick()))


@dataclass(frozen=True)
class PretrainedPart:
    """Initial weights from pretraining on `pictures` synthetic images. `part` of the network is trained."""

    kind: ClassVar[str] = "pretrained"
    part: TrainedPart
    pictures: int

    def built(self, network: str, facts: Facts, seed: int) -> Built:
        return self.part.built(kept_pretrained(network, facts.input_shape, self.pictures), facts, seed=seed)

    def quick(self) -> PretrainedPart:
        return replace(self, pictures=64)


@dataclass(frozen=True)
class EmbeddedMethod:
    """Training in the subspace spanned by gradients of synthetic images (gradient embedding perturbation)."""

    kind: ClassVar[str] = "embedded"
    network: str
    settings: EmbeddingPerturbation

    def built(self, facts: Facts, seed: int) -> Built:
        return models.build(self.network, facts, seed=seed)

    def train(self, rows: ExperimentRows, epsilon: float, rate: float, seed: int, out: Path) -> Measurement:
        """Always starts at step 0: it cannot be resumed, and `out` is not used."""
        size, examples = self.settings.batch_size, len(rows)
        steps = steps_for(self.settings.epochs, examples, size)
        fitted = fit_embedded(
            self.built(rows.facts, seed),
            rows.data,
            rows.facts,
            self.settings,
            epsilon=epsilon,
            delta=DELTA,
            sparsify=Sparsity(rate).encoding(steps, steps_per_epoch(examples, size)) if rate else None,
            test=rows.test,
            seed=seed,
            progress=False,
        )
        return outcome_of(fitted)

    def quick(self) -> EmbeddedMethod:
        return replace(self, settings=replace(self.settings, batch_size=16, epochs=2.0, public_rows=8, directions=9))


@lru_cache(maxsize=1)  # entries that follow one another share their rows
def rows_for(way: ComparedMethod, data: str, examples: int | None, public: int | None) -> ExperimentRows:
    """The first private and public rows of a standard dataset, prepared for a training method."""
    loaded = load(data)
    if loaded.test is None:
        raise DataError(f"{data} has no public rows, which a table of accuracies needs.")
    prepare = way.built(loaded.facts, seed=0).prepare
    test = prepare(loaded.test.inputs[:public], progress=False), loaded.test.target[:public]
    inputs = prepare(loaded.train.inputs[:examples], progress=False)
    return ExperimentRows(inputs, loaded.train.target[:examples], Public(test), loaded.facts)


def kept_pretrained(model: str, input_shape: tuple[int, ...], pictures: int) -> PretrainedNetwork:
    """Pretrains once, and keeps the weights next to the datasets. The file may be deleted at any time."""
    shape = "x".join(str(size) for size in input_shape)
    path = root() / "pretrained" / f"{model}-{shape}-{pictures}-v{VERSION}.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        pretrain(model, input_shape, pictures=pictures, progress=False).save(path)
    return PretrainedNetwork.read(path)
