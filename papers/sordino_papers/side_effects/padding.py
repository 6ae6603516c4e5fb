"""Accuracy on padded images: the smaller the object, the more accuracy is lost to privacy (Xu and Chen 2026, section
6.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sordino.effects.input_attacks import LInfinity
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.harness.training_entries import training_entry
from sordino_papers.side_effects.curves import CurvePoint, clean_and_adversarial
from sordino_papers.side_effects.image_sets import ImageSet, Padding
from sordino_papers.side_effects.trials import EPSILON, LENET, not_private, quick, with_attack, within

LEFT_OUT = 10_000
QUICK_ROWS = 3_000
RATES = (0.25, 0.5, 1.0)
RADII = (0.005, 0.01, 0.02, 0.03)

CHOSEN = (
    "network, batch size, clip and epsilon are the paper's, and 15 epochs are ours. The learning rate is the best of "
    "three, for pictures without padding, on 10,000 training rows that were left out, one seed (`--ablate`); the "
    "radius of the attack was set once on the same rows. No choice is counted in epsilon."
)
STAND_IN = "those of MNIST, without a search, with a network that two cores can train."


@dataclass(frozen=True)
class PaddedSet:
    """A standard dataset, its paddings in pixels per side, the trial, and the paper's numbers."""

    title: str
    set_name: str
    size: int
    pads: tuple[int, ...]
    trial: DpSgdTrial
    chosen: str
    paper: tuple[float, ...] | None = None
    paper_adversarial: tuple[float, ...] | None = None

    def points(self, scale: RunScale) -> tuple[CurvePoint, ...]:
        none: tuple[None, ...] = (None,) * len(self.pads)
        paper, adversarial = (None, None) if scale is RunScale.QUICK else (self.paper, self.paper_adversarial)
        numbers = zip(self.pads, paper or none, adversarial or none, strict=True)
        return tuple(
            CurvePoint(Padding(pixels).percent(self.size), self._entry(pixels, scale, clean), attacked)
            for pixels, clean, attacked in numbers
        )

    def _entry(self, pixels: int, scale: RunScale, paper: float | None) -> Entry:
        trial, pictures = sized(self.trial, ImageSet(self.set_name, Padding(pixels)), scale)
        method = f"{self.title}, padding {Padding(pixels).percent(self.size)} %"
        return training_entry(method, pictures, trial, EPSILON, paper=paper, chosen=self.chosen)


def sized(trial: DpSgdTrial, pictures: ImageSet, scale: RunScale) -> tuple[DpSgdTrial, ImageSet]:
    """A training of seconds at scale `quick`."""
    if scale is not RunScale.QUICK:
        return trial, pictures
    return quick(trial), replace(pictures, examples=min(QUICK_ROWS, pictures.examples or QUICK_ROWS))


EIGHT_BITS = LInfinity(8 / 255, step=2 / 255, steps=10)
MNIST = PaddedSet(
    "LeNet",
    "mnist",
    28,
    (0, 5, 14, 23, 42),
    LENET,
    CHOSEN,
    (97.0, 97.0, 95.0, 94.0, 86.0),
    (95.0, 89.0, 50.0, 20.0, 1.0),
)
COLOUR = PaddedSet("LeNet", "cifar10", 32, (0, 6, 16, 26, 48), with_attack(LENET, attack=EIGHT_BITS), STAND_IN)
COLOUR_CNN = replace(
    COLOUR,
    title="CNN",
    trial=replace(COLOUR.trial, network="dp-cnn", epochs=30.0),
    chosen="network, batch size, clip and epsilon are the paper's, the rest is ours, without a search.",
    paper=(58.0, 54.0, 51.0, 48.0, 46.0),
    paper_adversarial=(3.0, 2.0, 1.0, 0.0, 0.0),
)


@dataclass(frozen=True)
class PaddingTable:
    """The experiment `padding`."""

    name: str = "padding"
    about: str = (
        "Test accuracy in percent on pictures that are padded with black and shrunk back, epsilon 3, delta 1e-5,\n"
        "zero-out. The padding is a share of the side. Under attack: projected gradients, L-infinity, on 1,000 test\n"
        "rows. Paper: Xu and Chen (2026), section 6.2; its radius is not known, ours was set once."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(point.entry for each in _sets(scale) for point in each.points(scale))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """The search for a learning rate and an attack radius, and the effect of padding without privacy."""
        return (*_search(scale), *_without_privacy(scale))

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        lines = {f"{each.title}, {each.set_name}": each.points(scale) for each in _sets(scale)}
        path = folder / f"accuracy-{scale}"
        return (clean_and_adversarial(lines, "padding in percent", path, command, seeds=seeds),)


PADDING = PaddingTable()


def _sets(scale: RunScale) -> tuple[PaddedSet, ...]:
    return (MNIST, COLOUR_CNN) if scale is RunScale.PAPER else (MNIST, COLOUR)


def _search(scale: RunScale) -> Iterator[Entry]:
    for rate in RATES:
        attacked = with_attack(LENET, more_attacks=tuple(within(radius) for radius in RADII))
        tried = replace(attacked, learning_rate=rate)
        trial, pictures = sized(tried, ImageSet("mnist", left_out=LEFT_OUT), scale)
        yield training_entry(f"search, learning rate {rate:g}", pictures, trial, EPSILON)


def _without_privacy(scale: RunScale) -> Iterator[Entry]:
    for pixels in MNIST.pads:
        trial, pictures = sized(LENET, ImageSet("mnist", Padding(pixels)), scale)
        method = f"no privacy, LeNet, padding {Padding(pixels).percent(28)} %"
        yield not_private(method, pictures, trial)
