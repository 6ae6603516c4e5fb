"""DP-SGD trainings as values: network, optimizer, sparsification, and what is measured on the trained model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from sordino import models
from sordino.accounting import Adjacency, Guarantee
from sordino.data import Facts
from sordino.data.standard import root
from sordino.encodings import Combined, Cooling, Freeze, RandomSparsify, RankedSparsify, Weights
from sordino.encodings.freeze import Together, equal_stages
from sordino.encodings.sparsify import RateSchedule
from sordino.errors import UsageError
from sordino.kernel.augmentation import Views
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson, Sampler, steps_per_epoch
from sordino.kernel.step import Plan
from sordino.models import Built
from sordino.recipes.stages import parse_averaging
from sordino.training.averaging import Averaging
from sordino.training.checkpoint import surroundings
from sordino.training.evaluation import Evaluation
from sordino.training.fit import Fitted, fit
from sordino.training.loop import Training, measured, take_steps
from sordino.training.run_folder import RunFolder
from sordino.training.schedules import Constant
from sordino_papers.harness.entry import Measurement
from sordino_papers.harness.keys import as_key
from sordino_papers.harness.rows import ExperimentRows

DELTA = 1e-5
ADJACENCY = Adjacency.ZERO_OUT


@dataclass(frozen=True)
class Sparsity:
    """Sparsification with this final rate: random masks, or with `ranked` masks by the rank of past releases.

    With `masks_per_epoch` None, each step has a mask of its own.
    """

    final_rate: float
    masks_per_epoch: int | None = 1
    schedule: RateSchedule = field(default_factory=Cooling)
    ranked: bool = False

    def encoding(self, steps: int, per_epoch: int) -> RandomSparsify | RankedSparsify:
        random = RandomSparsify.throughout(
            steps,
            final_rate=self.final_rate,
            steps_per_epoch=per_epoch,
            refresh=per_epoch if self.masks_per_epoch is None else self.masks_per_epoch,
            schedule=self.schedule,
        )
        return RankedSparsify(**vars(random)) if self.ranked else random


@dataclass(frozen=True)
class FreezingStages:
    """Freezing in `count` stages of equal length. After the last, a fraction `final` of the weights is frozen."""

    count: int
    final: float
    together: Together = field(default_factory=Weights)
    prune: bool = False

    def encoding(self, model: nn.Module, steps: int) -> Encoding:
        stages = equal_stages(steps, stages=self.count)
        return Freeze.by_magnitude(model, stages=stages, final=self.final, together=self.together, prune=self.prune)


class InitialModel(Protocol):
    """The network and its initial weights."""

    def built(self, network: str, facts: Facts, seed: int) -> Built: ...

    def quick(self) -> InitialModel:
        """A cheaper value of the same kind, for scale `quick`."""
        ...


@dataclass(frozen=True)
class RandomWeights:
    """Random initial weights: training from scratch."""

    kind: ClassVar[str] = "random-weights"

    def built(self, network: str, facts: Facts, seed: int) -> Built:
        return models.build(network, facts, seed=seed)

    def quick(self) -> RandomWeights:
        return self


class ModelMeasurement(Protocol):
    """A measurement on the trained model, in addition to accuracy."""

    def measure(self, model: nn.Module, rows: ExperimentRows, seed: int) -> Mapping[str, Any]: ...


OPTIMIZERS = ("sgd", "adam")
PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
_SECOND_BETA = 0.999


@dataclass(frozen=True)
class DpSgdTrial:
    """All settings of a DP-SGD training except rows, epsilon and seed. `network` is a name from `sordino.models`.

    For Adam, `momentum` is the first beta. With `precision` bfloat16, matrix products are computed in bfloat16, which
    takes three quarters of the time; norms, sums, noise and weights stay in float32.
    """

    network: str
    batch_size: int
    epochs: float
    learning_rate: float
    clip: float
    momentum: float
    sparsity: Sparsity | None = None
    averaging: str = "none"
    optimizer: str = "sgd"
    precision: str = "float32"
    start: InitialModel = field(default_factory=RandomWeights)
    freezing: FreezingStages | None = None
    views: Views | None = None
    measurement: ModelMeasurement | None = None

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}.")
        if self.precision not in PRECISIONS:
            raise UsageError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}.")

    def to_epsilon(
        self, rows: ExperimentRows, epsilon: float, seed: int, out: Path | None = None, sampler: Sampler | None = None
    ) -> Measurement:
        """Trains with the noise that `epsilon` requires, and measures the model on the public rows."""
        fitted = self.fitted(rows, epsilon, seed, out, sampler)
        found = outcome_of(fitted)
        return replace(found, more={**found.more, **self.more_of(fitted.model, rows, seed)})

    def more_of(self, model: nn.Module, rows: ExperimentRows, seed: int) -> Mapping[str, Any]:
        """Results of `measurement`, or nothing."""
        return {} if self.measurement is None else self.measurement.measure(model, rows, seed)

    def fitted(
        self, rows: ExperimentRows, epsilon: float, seed: int, out: Path | None = None, sampler: Sampler | None = None
    ) -> Fitted:
        """Trains with the noise that `epsilon` requires, with Poisson sampling unless a sampler is given.

        With `out`, an interrupted training is resumed.
        """
        folder, model = None if out is None else RunFolder(out), self.build(rows.facts, seed)
        return fit(
            model,
            rows.data,
            epsilon=epsilon,
            delta=DELTA,
            batch_size=self.batch_size,
            sampler=sampler or self.poisson(len(rows)),
            loss=F.cross_entropy,
            clip=self.clip,
            encoding=self.encoding_of(model, len(rows)),
            views=self.views,
            autocast=self.autocast,
            optimizer=self.optimizer_for,
            averaging=self.average,
            evaluation=Evaluation(at_end=rows.test),
            seed=seed,
            out=out,
            resume=folder is not None and not folder.is_free,
            progress=False,
        )

    def with_noise(self, rows: ExperimentRows, sampler: Sampler, noise_multiplier: float, seed: int) -> Measurement:
        """Trains with a given noise multiplier, and reports the epsilon that it has with this sampler."""
        plan = self.plan(sampler, noise_multiplier, len(rows))
        accuracy = train_and_measure(
            plan,
            self.build(rows.facts, seed),
            rows,
            optimizer=self.optimizer_for,
            divisor=self.batch_size,
            seed=seed,
            averaging=self.average,
        )
        return outcome(accuracy, plan.guarantee(delta=DELTA), noise_multiplier)

    def plan(self, sampler: Sampler, noise_multiplier: float, examples: int) -> Plan:
        """The plan of a run on this number of examples."""
        clip, noise = ClipByNorm(self.clip), Gaussian(noise_multiplier)
        return Plan(sampler, LossGradient(F.cross_entropy, self.autocast), clip, noise, self.encoding(examples))

    def poisson(self, examples: int) -> Poisson:
        return Poisson(self.batch_size / examples, self.steps(examples), ADJACENCY)

    def steps(self, examples: int) -> int:
        return round(self.epochs * examples / self.batch_size)

    def encoding(self, examples: int) -> Encoding:
        if self.sparsity is None:
            return Unchanged()
        return self.sparsity.encoding(self.steps(examples), steps_per_epoch(examples, self.batch_size))

    def encoding_of(self, model: nn.Module, examples: int) -> Encoding:
        """The encoding for a given model: freezing by magnitude needs its weights."""
        if self.freezing is None:
            return self.encoding(examples)
        freezing = self.freezing.encoding(model, self.steps(examples))
        return freezing if self.sparsity is None else Combined(freezing, self.encoding(examples))

    @property
    def autocast(self) -> torch.dtype | None:
        return PRECISIONS[self.precision]

    def built(self, facts: Facts, seed: int) -> Built:
        """The network before training, with the preparation of its inputs."""
        return self.start.built(self.network, facts, seed)

    def build(self, facts: Facts, seed: int) -> nn.Module:
        return self.built(facts, seed).module

    def optimizer_for(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=self.learning_rate, betas=(self.momentum, _SECOND_BETA))
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    @property
    def average(self) -> Averaging | None:
        return parse_averaging(self.averaging)


def outcome_of(fitted: Fitted) -> Measurement:
    """Accuracy and guarantee of a finished training."""
    noise: Any = fitted.plan.noise
    return outcome(fitted.metrics[-1]["test_accuracy"], fitted.guarantee, noise.noise_multiplier)


def outcome(accuracy: float, guarantee: Guarantee, noise_multiplier: float) -> Measurement:
    """An accuracy in percent, with its guarantee."""
    more = {
        "epsilon": guarantee.epsilon,
        "delta": DELTA,
        "accountant": guarantee.accountant,
        "noise_multiplier": noise_multiplier,
    }
    return Measurement(100 * accuracy, more)


def unfinished(*decided_by: object) -> Path:
    """Folder in the cache for a long training, so that it can be resumed.

    The name depends on the code and the machine: a training is resumed only where it can be repeated bit for bit.
    """
    decided = json.dumps([as_key(decided_by), repr(surroundings())], sort_keys=True)
    name = hashlib.sha256(decided.encode()).hexdigest()[:32]
    return root() / "trainings" / name


def forget(folder: Path) -> None:
    """Removes the folder of a training whose result has been saved."""
    shutil.rmtree(folder, ignore_errors=True)


MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def train_and_measure(
    plan: Plan,
    model: nn.Module,
    rows: ExperimentRows,
    *,
    optimizer: MakeOptimizer,
    divisor: float,
    seed: int,
    averaging: Averaging | None = None,
) -> float:
    """Trains `model` in place according to the plan, and measures accuracy on the public rows."""
    run = PrivateRun(plan, model, Budget(rows.data), key=Key.from_seed(seed))
    training = Training(
        model, optimizer(model.parameters()), run, divisor=divisor, schedule=Constant(), averaging=averaging
    )
    take_steps(training)
    model.load_state_dict(training.weights())
    return measured(model, rows.test)["accuracy"]
