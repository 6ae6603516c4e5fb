"""Accuracy of a class with few examples (Xu and Chen 2026, appendix E.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from sordino.data import DataSet, Split, load
from sordino.errors import DataError
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.training_entries import training_entry
from sordino_papers.side_effects.curves import CurvePoint, CurveTable
from sordino_papers.side_effects.image_sets import ImageSet
from sordino_papers.side_effects.trials import EPSILON, LENET, quick

LABEL = 5
SIZES = (100, 500, 1000, 3000)
PAPER, PAPER_ADVERSARIAL = (71.0, 93.0, 96.0, 97.0), (60.0, 83.0, 96.0, 97.0)
_QUICK_SHARE = 10
_CHOSEN = "those of the table of padding, where they were compared on left-out rows of the whole set; no search here."


@dataclass(frozen=True)
class OneSmallClass(ImageSet):
    """The first `size` rows of class `label` and the first `others` of each other class. Measured on `label` only."""

    kind: ClassVar[str] = "one-small-class"
    label: int = LABEL
    size: int = 3000
    others: int = 3000

    def chosen(self) -> DataSet:
        loaded = load(self.set_name)
        if loaded.test is None:
            raise DataError(f"{self.set_name} has no public rows, which a table of accuracies needs.")
        train, test = loaded.train, loaded.test
        rank = torch.zeros_like(train.target)  # of each row among those of its class
        for label in range(loaded.facts.num_classes or 0):
            rank[train.target == label] = torch.arange(int((train.target == label).sum()))
        kept = rank < torch.where(train.target == self.label, self.size, self.others)
        of_label = test.target == self.label
        private, public = (
            Split(train.inputs[kept], train.target[kept]),
            Split(test.inputs[of_label], test.target[of_label]),
        )
        return replace(loaded, train=private, test=public)


def _points(scale: RunScale) -> tuple[CurvePoint, ...]:
    numbers = zip(SIZES, PAPER, PAPER_ADVERSARIAL, strict=True)
    return tuple(_point(size, clean, adversarial, scale) for size, clean, adversarial in numbers)


def _point(size: int, paper: float, adversarial: float, scale: RunScale) -> CurvePoint:
    if scale is RunScale.QUICK:
        rows = OneSmallClass("mnist", size=size // _QUICK_SHARE, others=3000 // _QUICK_SHARE)
        entry = training_entry(f"LeNet, {rows.size} rows", rows, quick(LENET), EPSILON, chosen=_CHOSEN)
        return CurvePoint(rows.size, entry)
    entry = training_entry(
        f"LeNet, {size} rows", OneSmallClass("mnist", size=size), LENET, EPSILON, paper=paper, chosen=_CHOSEN
    )
    return CurvePoint(size, entry, adversarial)


CLASS_SIZE = CurveTable(
    "class-size",
    (
        "Test accuracy in percent on class 5 of MNIST, which has fewer rows than the 3,000 of each other class,\n"
        "epsilon 3, delta 1e-5, zero-out, LeNet. Under attack: the attack of the table `padding`, on all test rows\n"
        "of the class. Paper: Xu and Chen (2026), appendix E.1."
    ),
    "LeNet, class 5",
    "rows of class 5",
    _points,
)
