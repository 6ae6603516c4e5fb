"""Accuracy with augmentation: several random views of each image (Xu and Chen 2026, appendix H)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sordino.kernel.augmentation import Crop, Flip, Views
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import gains_table
from sordino_papers.harness.training_entries import training_entry
from sordino_papers.side_effects.image_sets import ImageSet
from sordino_papers.side_effects.padding import COLOUR, COLOUR_CNN, PaddedSet, sized
from sordino_papers.side_effects.trials import EPSILON

SETS: Mapping[RunScale, PaddedSet] = {RunScale.QUICK: COLOUR, RunScale.CPU: COLOUR, RunScale.PAPER: COLOUR_CNN}
NUMBERS: Mapping[RunScale, Sequence[int]] = {RunScale.QUICK: (2,), RunScale.CPU: (4,), RunScale.PAPER: (4, 16)}
_CHOSEN = "those of the table of padding, for all lines alike; flips and crops by 4 pixels are as usual on CIFAR-10."


@dataclass(frozen=True)
class AugmentationTable:
    """The experiment `augmentation`."""

    name: str = "augmentation"
    about: str = (
        "Test accuracy in percent on CIFAR-10 with each row seen several times in a step, flipped and cropped, and\n"
        "its gradients averaged before the clip, epsilon 3, delta 1e-5, zero-out. Views cost no privacy. Paper:\n"
        "Xu and Chen (2026), appendix H, expect 2 points, which they take from De et al. (2022)."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entry(number, scale) for number in (0, *NUMBERS[scale]))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        none, *others = self.entries(scale)
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        return (gains_table([(none, other) for other in others], folder, scale, seeds, command, what="augmentation"),)


AUGMENTATION = AugmentationTable()


def _entry(number: int, scale: RunScale) -> Entry:
    trained_on = SETS[scale]
    views = Views(number, (Flip(), Crop(4))) if number else None
    trial, pictures = sized(replace(trained_on.trial, views=views), ImageSet(trained_on.set_name), scale)
    method = f"{trained_on.title}, {f'{number} views' if number else 'none'}"
    return training_entry(method, pictures, trial, EPSILON, chosen=_CHOSEN)
