"""What each group lost: accuracy beside that of a reference on the same public rows, and one sentence about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.effects.groups import FEW, Group, Grouping
from sordino.effects.intervals import Interval, change_of, in_points, mean_of


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
        lost = None if reference is None else change_of(reference[group.rows] - mine, seed=seed)
        return GroupAccuracy(group.by, group.name, len(group.rows), mean_of(mine, seed=seed), lost)

    return tuple(of(group) for group in grouping.groups)


def who_lost(groups: Sequence[GroupAccuracy], beside: str) -> str:
    """In a sentence about people, where there are groups of them, and one about classes: who lost how much.

    Named are the group that surely lost most and the one that surely lost least, by the ends of their intervals, so
    that a small group whose loss may well be chance does not come first. People are told apart by all columns at once.

    >>> def group(by, name, *lost):
    ...     return GroupAccuracy(by, name, 500, Interval(0.8, 0.7, 0.9), Interval(*lost))
    >>> both = group("sex", "Female", 0.041, 0.02, 0.063), group("sex", "Male", 0.012, 0.01, 0.014)
    >>> who_lost(both, "a twin")
    'Beside a twin, Female lost 4.1 points (2.0 to 6.3), Male lost 1.2 (1.0 to 1.4).'
    """
    kinds = dict.fromkeys((groups[-1].by, "class"))
    said = [_extremes([group for group in groups if group.by == kind]) for kind in kinds]
    known = [each for each in said if each]
    if not known:
        return f"Fewer than two groups have {FEW} public rows: nothing can be said about who lost more."
    return f"Beside {beside}, " + " By class, ".join(known)


def _extremes(groups: Sequence[GroupAccuracy]) -> str:
    known = [(each, each.lost) for each in groups if each.lost is not None and each.rows >= FEW]
    if len(known) < 2:
        return ""
    most, more = max(known, key=lambda pair: pair[1].low)
    least, less = min((pair for pair in known if pair[0] is not most), key=lambda pair: pair[1].high)
    said = f"{most.label} {_change(more, ' points')}, {least.label} {_change(less, '')}."
    return said if more.low > less.high else f"{said} The intervals overlap: the difference of the two may be chance."


def _change(lost: Interval, unit: str) -> str:
    verb, sign = ("lost", 1) if lost.value >= 0 else ("gained", -1)
    low, high = sorted((sign * lost.low, sign * lost.high))
    return f"{verb} {in_points(abs(lost.value))}{unit} ({in_points(low)} to {in_points(high)})"
