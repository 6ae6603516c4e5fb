"""Public pretraining and private fine-tuning on rotated images: public images help less, the larger the angle.

Xu and Chen (2026), section 6.2 and Proposition 4.4. The paper's angles are not known; ours are 0, 30, 60 and 90
degrees. The training rows are declared public. The test rows are rotated, and the first half of them is private.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from sordino import models
from sordino.data import DataSet, Facts, Split, load
from sordino.effects.rare_examples import train_plainly
from sordino.errors import DataError
from sordino.models import Built
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.harness.training_entries import training_entry
from sordino_papers.side_effects.curves import CurvePoint, clean_and_adversarial
from sordino_papers.side_effects.image_sets import ImageSet, Rotation
from sordino_papers.side_effects.padding import EIGHT_BITS
from sordino_papers.side_effects.trials import EPSILON, LENET, quick, with_attack


@dataclass(frozen=True)
class RotatedTestImages(ImageSet):
    """The test rows of a dataset, rotated: the first half is private, the second half is used to measure accuracy."""

    kind: ClassVar[str] = "rotated-test-images"

    def chosen(self) -> DataSet:
        loaded = load(self.set_name)
        if loaded.test is None:
            raise DataError(f"{self.set_name} has no test rows to turn.")
        inputs, target = loaded.test.inputs, loaded.test.target
        half = len(target) // 2
        return replace(loaded, train=Split(inputs[:half], target[:half]), test=Split(inputs[half:], target[half:]))


@dataclass(frozen=True)
class PublicTraining:
    """Initial weights from training on the public training rows of a dataset, or on `examples` of them."""

    kind: ClassVar[str] = "public-training"
    set_name: str
    examples: int | None = None

    def weights(self, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
        return _learnt(self, network, facts, seed)

    def built(self, network: str, facts: Facts, seed: int) -> Built:
        built = models.build(network, facts, seed=seed)
        built.module.load_state_dict(self.weights(network, facts, seed))
        return built

    def quick(self) -> PublicTraining:
        return replace(self, examples=2_000)


@lru_cache(maxsize=2)  # entries of one seed share what was learnt
def _learnt(learning: PublicTraining, network: str, facts: Facts, seed: int) -> dict[str, Tensor]:
    rows = ImageSet(learning.set_name, examples=learning.examples).rows(LENET)
    model = train_plainly(models.build(network, facts, seed=seed).module, *rows.data, seed=seed)
    return {name: x.detach().clone() for name, x in model.state_dict().items()}


DEGREES = (0.0, 30.0, 60.0, 90.0)
LEFT_OUT = 1_000
RATES = (0.1, 0.2, 0.4, 0.8)
_CHOSEN = (
    "batch size, clip and epsilon are the paper's; angles, epochs and learning rates are ours, by hand. `--ablate` "
    "compares four learning rates at 60 degrees, with and without public rows, on 1,000 private rows left out."
)
_NO_SEARCH = "those of LeNet on MNIST, without a search."


@dataclass(frozen=True)
class RotationSetup:
    """A network to fine-tune on rotated images, the same network with random weights, and the paper's accuracies."""

    title: str
    set_name: str
    tuned: DpSgdTrial
    scratch: DpSgdTrial
    chosen: str
    paper: tuple[float, ...] | None = None

    def lines(self, scale: RunScale) -> dict[str, tuple[CurvePoint, ...]]:
        """One point per angle, by initial weights."""
        papers = self.paper if self.paper and scale is not RunScale.QUICK else (None,) * len(DEGREES)
        ways = {"tuned": (self.tuned, papers), "from scratch": (self.scratch, (None,) * len(DEGREES))}
        return {
            f"{self.title}, {self.set_name}, {way}": tuple(
                CurvePoint(degrees, self.entry(way, trial, degrees, scale, paper=paper))
                for degrees, paper in zip(DEGREES, numbers, strict=True)
            )
            for way, (trial, numbers) in ways.items()
        }

    def entry(
        self,
        way: str,
        trial: DpSgdTrial,
        degrees: float,
        scale: RunScale,
        *,
        left_out: int = 0,
        paper: float | None = None,
    ) -> Entry:
        pictures = RotatedTestImages(self.set_name, Rotation(degrees), left_out=left_out)
        if scale is RunScale.QUICK:
            trial, pictures = quick(trial), replace(pictures, examples=1_000)
        method = f"{self.title}, {way}, {degrees:g} degrees"
        return training_entry(method, pictures, trial, EPSILON, paper=paper, chosen="" if left_out else self.chosen)

    def search(self, scale: RunScale) -> Iterator[Entry]:
        for rate in RATES:
            for way, trial in (("tuned", self.tuned), ("from scratch", self.scratch)):
                tried = replace(trial, learning_rate=rate)
                yield self.entry(f"search, {way}, learning rate {rate:g}", tried, 60.0, scale, left_out=LEFT_OUT)


GREY = RotationSetup(
    "LeNet",
    "mnist",
    replace(LENET, learning_rate=0.4, start=PublicTraining("mnist")),
    replace(LENET, learning_rate=0.4),
    _CHOSEN,
    (99.0, 97.0, 94.0, 94.0),
)
COLOUR = replace(
    GREY,
    set_name="cifar10",
    tuned=replace(with_attack(GREY.tuned, attack=EIGHT_BITS), start=PublicTraining("cifar10")),
    scratch=with_attack(GREY.scratch, attack=EIGHT_BITS),
    chosen=_NO_SEARCH,
    paper=None,
)
COLOUR_CNN = replace(
    COLOUR,
    title="CNN",
    tuned=replace(COLOUR.tuned, network="dp-cnn"),
    scratch=replace(COLOUR.scratch, network="dp-cnn"),
    paper=(70.0, 59.0, 51.0, 49.0),
)
RESNET = replace(
    COLOUR,
    title="ResNet-18",
    tuned=replace(COLOUR.tuned, network="resnet-18"),
    scratch=replace(COLOUR.scratch, network="resnet-18"),
    paper=(91.0, 66.0, 43.0, 37.0),
)


@dataclass(frozen=True)
class RotationTable:
    """The experiment `rotation`."""

    name: str = "rotation"
    about: str = (
        "Test accuracy in percent of networks that learnt from upright pictures, declared public, and were then tuned\n"
        "on 5,000 turned ones, epsilon 3, delta 1e-5, zero-out; and of the same network from random weights. Where\n"
        "these are better, the public pictures hurt. Paper: Xu and Chen (2026), section 6.2; its angles are not known."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(point.entry for points in _lines(scale).values() for point in points)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """The search for learning rates."""
        return tuple(GREY.search(scale))

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        path = folder / f"accuracy-{scale}"
        return (clean_and_adversarial(_lines(scale), "degrees", path, command, seeds=seeds),)


ROTATION = RotationTable()


def _lines(scale: RunScale) -> dict[str, tuple[CurvePoint, ...]]:
    few = replace(GREY.tuned, start=GREY.tuned.start.quick())
    turnings = {
        RunScale.QUICK: (replace(GREY, tuned=few),),
        RunScale.CPU: (GREY, COLOUR),
        RunScale.PAPER: (GREY, COLOUR_CNN, RESNET),
    }
    return {name: points for turning in turnings[scale] for name, points in turning.lines(scale).items()}
