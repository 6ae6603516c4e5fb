"""What each group lost: accuracy beside that of a reference on the same public rows, and one sentence about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.effects.groups import FEW, Group, Grouping
from sordino.effects.intervals import Interval, mean_of


@dataclass(frozen=True)
class GroupAccuracy:
    """How often the model is right about a group, and how much more often the reference is."""

    by: str
    name: str
    rows: int
    accuracy: Interval
    lost: Interval | None = None

    @property
    def label(self) -> str:
        return f"class {self.name}" if self.by == "class" else self.name

    def as_dict(self) -> dict[str, object]:
        known = {"by": self.by, "name": self.name, "rows": self.rows, "accuracy": self.accuracy.as_dict()}
        return known | ({} if self.lost is None else {"lost": self.lost.as_dict()})


def accuracies(
    grouping: Grouping, right: NDArray[np.float64], reference: NDArray[np.float64] | None = None, *, seed: int
) -> tuple[GroupAccuracy, ...]:
    """Of each group. Reference and model are compared row by row, so that rows that are hard for both do not count.

    >>> groups = Grouping("class", (Group("class", "cat", np.arange(2)), Group("class", "dog", np.arange(2, 4))))
    >>> found = accuracies(groups, np.array([1.0, 1.0, 0.0, 1.0]), np.ones(4), seed=0)
    >>> [(each.name, each.accuracy.value, each.lost.value) for each in found]
    [('cat', 1.0, 0.0), ('dog', 0.5, 0.5)]
    """

    def of(group: Group) -> GroupAccuracy:
        mine = right[group.rows]
        lost = None if reference is None else mean_of(reference[group.rows] - mine, seed=seed)
        return GroupAccuracy(group.by, group.name, len(group.rows), mean_of(mine, seed=seed), lost)

    return tuple(of(group) for group in grouping.groups)


def who_lost(groups: Sequence[GroupAccuracy], beside: str) -> str:
    """The group that surely lost most, the one that surely lost least, and how much. Groups of few rows are not named.

    Surely is by the ends of the intervals: a small group whose loss may well be chance does not come first.

    >>> def group(name, *lost):
    ...     return GroupAccuracy("sex and race", name, 500, Interval(0.8, 0.7, 0.9), Interval(*lost))
    >>> both = group("Black, Female", 0.041, 0.02, 0.063), group("White, Male", 0.012, 0.01, 0.014)
    >>> who_lost(both, "the twin")
    'Beside the twin, Black, Female lost 4.1 points (2.0 to 6.3), White, Male lost 1.2 (1.0 to 1.4).'
    """
    known = [(each, each.lost) for each in groups if each.lost is not None and each.rows >= FEW]
    if len(known) < 2:
        return f"Fewer than two groups have {FEW} public rows: nothing can be said about who lost more."
    most, more = max(known, key=lambda pair: pair[1].low)
    least, less = min(known, key=lambda pair: pair[1].high)
    said = f"Beside {beside}, {most.label} {_change(more, ' points')}, {least.label} {_change(less, '')}."
    if more.low <= less.high:
        said += " The intervals overlap: the difference between the two may be chance."
    return said


def _change(lost: Interval, unit: str) -> str:
    verb, sign = ("lost", 1) if lost.value >= 0 else ("gained", -1)
    low, high = sorted((100 * sign * lost.low, 100 * sign * lost.high))
    return f"{verb} {100 * abs(lost.value):.1f}{unit} ({low:.1f} to {high:.1f})"
