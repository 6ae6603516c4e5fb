"""How good a finished model is on the public test rows, as whole numbers from which intervals follow."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.errors import SordinoError
from sordino.recipes import FinishedRun, OwnRun
from sordino.report.judged import judge
from sordino.training.evaluation import Regression, correctness, wilson


@dataclass(frozen=True)
class Share:
    """So many right of so many.

    >>> Share(9, 10).text
    '90.0 % (59.6 to 98.2)'
    """

    right: int
    rows: int

    @property
    def value(self) -> float:
        return self.right / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's, at 95 %."""
        return wilson(self.right, self.rows)

    @property
    def text(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"

    def as_dict(self) -> dict[str, object]:
        return {"right": self.right, "rows": self.rows, "accuracy": self.value, "interval_95": list(self.interval)}


@dataclass(frozen=True)
class Accuracy:
    """Of all test rows, and of those of each class that occurs."""

    overall: Share
    by_class: dict[str, Share]


@dataclass(frozen=True)
class Errors:
    """Errors of a regression model, in units of its target, which a recipe scales to [-1, 1]."""

    regression: Regression
    rows: int
    is_scaled: bool = True


@dataclass(frozen=True)
class Unmeasured:
    """There is nothing to measure on, and this is why."""

    reason: str


Quality = Accuracy | Errors | Unmeasured


def quality_of(saved: FinishedRun) -> Quality:
    """Applies the model to the test rows, if they are at hand. Rows that cannot be judged are left out, as in training.

    Guarantee: nothing here is computed from training rows.
    """
    try:
        if isinstance(saved, OwnRun):
            return _of_own(saved)
        judged = judge(saved)
    except SordinoError as error:
        return Unmeasured(str(error))
    outputs, target = judged.outputs, judged.rows.target
    if saved.facts.num_classes is None:
        return Errors(Regression.of(outputs, target), len(target))
    names = saved.facts.class_names or tuple(str(label) for label in range(saved.facts.num_classes))
    return _accuracy(correctness(outputs, target), target, names)


def _of_own(own: OwnRun) -> Quality:
    """Accuracy where each row has one label, errors where the target is a number or several."""
    if own.data is None or not own.has_model:
        return Unmeasured(
            "the folder holds neither rows nor the code of the model. Pass --data FILE (public rows) and "
            "--model MODULE:FUNCTION (a function that returns the untrained module)."
        )
    rows = own.public_rows()
    rows = rows.take(rows.usable)
    if rows.target is None or not len(rows.target):
        return Unmeasured("no test row can be judged.")
    outputs = own.outputs_of(rows.inputs)
    if rows.target.is_floating_point():
        return Errors(Regression.of(outputs, rows.target), len(rows.target), is_scaled=False)
    if rows.target.ndim > 1:
        return Unmeasured("each row has several labels, and accuracy is about one label of a row.")
    names = own.facts.class_names or tuple(str(label) for label in range(own.facts.num_classes or 2))
    return _accuracy(correctness(outputs, rows.target), rows.target, names)


def _accuracy(right: Tensor, target: Tensor, names: tuple[str, ...]) -> Accuracy:
    by_class = {
        names[label] if label < len(names) else str(label): _share(right[target == label])
        for label in torch.unique(target).tolist()
    }
    return Accuracy(_share(right), by_class)


def _share(right: Tensor) -> Share:
    return Share(int(right.sum()), len(right))
