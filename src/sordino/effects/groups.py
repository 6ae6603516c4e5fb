"""Accuracy by group, parity measures, and accuracy lost compared with a reference model.

Groups of public rows: by class, by what a column says, and by what several columns say together.

Whether groups are treated alike where there is something to get: two classes, of which one is the favourable.

Demographic parity asks whether groups get the last class equally often; equalized odds, whether they do among those
who should get it and among those who should not (Hardt, Price and Srebro 2016). The rates are those of `fairlearn`.

What each group lost: accuracy beside that of a reference on the same public rows, and one sentence about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino._input import validate
from sordino.data import Facts, Split
from sordino.data.columns import Category
from sordino.data.schema import Schema
from sordino.data.standard import adult_schema
from sordino.effects.bootstrap import Interval, change_of, gap_of, in_points, mean_of
from sordino.errors import DataError, UsageError
from sordino.recipes import SavedRun

FEW = 30  # rows: an accuracy on fewer says nearly nothing


@dataclass(frozen=True)
class Group:
    """The rows that share something, by their numbers. `by` says what tells such groups apart."""

    by: str
    name: str
    rows: NDArray[np.int64] = field(repr=False)

    @property
    def is_small(self) -> bool:
        return len(self.rows) < FEW


@dataclass(frozen=True)
class Grouping:
    """All groups that differ in one thing, and the names of those that have no row."""

    by: str
    groups: tuple[Group, ...]
    empty: tuple[str, ...] = ()


def by_class(target: Tensor, facts: Facts) -> Grouping:
    """
    >>> found = by_class(torch.tensor([0, 2, 2]), Facts("things", (1,), 3, class_names=("cat", "dog", "eel")))
    >>> [(group.name, len(group.rows)) for group in found.groups], found.empty
    ([('cat', 1), ('eel', 2)], ('dog',))
    """
    names = facts.class_names or tuple(str(label) for label in range(facts.num_classes or 0))
    return _grouping("class", [(name, target == label) for label, name in enumerate(names)])


def by_columns(rows: Split, names: dict[str, tuple[str, ...]], columns: Sequence[str]) -> Grouping:
    """The groups that one column tells apart, or several together. A row whose group is not known is in none.

    >>> split = Split(torch.zeros(3, 1), torch.zeros(3), groups={"sex": torch.tensor([0, 1, -1])})
    >>> [group.name for group in by_columns(split, {"sex": ("female", "male")}, ["sex"]).groups]
    ['female', 'male']
    """
    found = []
    for labels in product(*(range(len(names[column])) for column in columns)):
        chosen = torch.ones(len(rows.target), dtype=torch.bool)
        for column, label in zip(columns, labels, strict=True):
            chosen &= rows.groups[column] == label
        found.append((", ".join(names[c][label] for c, label in zip(columns, labels, strict=True)), chosen))
    grouping = _grouping(" and ".join(columns), found)
    if not grouping.groups:
        raise DataError(f"no public row has a known {grouping.by}.")
    return grouping


def groupings(rows: Split, saved: SavedRun, columns: Sequence[str]) -> tuple[Grouping, ...]:
    """By class, by each of the columns, and by all of them together. Without columns, those that the data declares."""
    declared = tuple(rows.groups)
    for column in columns:
        if column not in declared:
            allowed = f"declared are {', '.join(declared)}" if declared else f"{saved.facts.name!r} declares none"
            raise UsageError(f"there is no group column {validate.option(column)}: {allowed}.")
    chosen = tuple(dict.fromkeys(columns)) or declared
    names = _names(rows, saved)
    together = [chosen] if len(chosen) > 1 else []
    found = [by_columns(rows, names, each) for each in (*((column,) for column in chosen), *together)]
    return by_class(rows.target, saved.facts), *found


def _grouping(by: str, chosen: Sequence[tuple[str, Tensor]]) -> Grouping:
    groups = [Group(by, name, np.flatnonzero(which.numpy())) for name, which in chosen]
    return Grouping(
        by,
        tuple(group for group in groups if len(group.rows)),
        tuple(group.name for group in groups if not len(group.rows)),
    )


def _names(rows: Split, saved: SavedRun) -> dict[str, tuple[str, ...]]:
    """What the labels of each group column stand for, by the schema where there is one."""
    schema = adult_schema() if saved.facts.name == "adult" else None
    if saved.folder.schema is not None:
        schema = Schema.read(saved.folder.schema)
    if schema is None:
        return {
            name: tuple(f"{name} {k}" for k in range(int(labels.max()) + 1)) for name, labels in rows.groups.items()
        }
    columns = {name: schema.columns[name] for name in schema.groups}
    return {name: column.categories for name, column in columns.items() if isinstance(column, Category)}


Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Disparity:
    """The largest distance of two groups in one rate, the groups, and an interval for just these two."""

    by: str
    rate: str
    gap: Interval
    most: str
    least: str

    @property
    def words(self) -> str:
        return f"the {self.rate} is {self.gap.points} points higher for {self.most} than for {self.least}."


def demographic_parity(grouping: Grouping, target: Labels, predicted: Labels, last: str, *, seed: int) -> Disparity:
    """The difference in how often groups get the last class, whose name is `last`.

    >>> from sordino.effects.groups import Group
    >>> groups = Grouping("sex", (Group("sex", "f", np.arange(4)), Group("sex", "m", np.arange(4, 8))))
    >>> truth, said = np.array([0, 1] * 4), np.array([0, 0, 0, 1, 1, 1, 1, 0])
    >>> found = demographic_parity(groups, truth, said, "yes", seed=0)
    >>> found.most, found.least, found.gap.value
    ('m', 'f', 0.5)
    """
    everybody = np.ones(len(target), bool)
    return _disparity(grouping, f"share given {last!r}", target, predicted, everybody, seed)


def equalized_odds(grouping: Grouping, target: Labels, predicted: Labels, last: str, *, seed: int) -> Disparity:
    """The larger of the differences in true and in false positive rates. Each group needs rows of both classes."""
    for group in grouping.groups:
        if len(np.unique(target[group.rows])) < 2:
            raise DataError(f"equalized odds need rows of both classes in each group, and {group.name!r:.80} has one.")
    rates = {f"share rightly given {last!r}": target == 1, f"share wrongly given {last!r}": target == 0}
    found = [_disparity(grouping, rate, target, predicted, among, seed) for rate, among in rates.items()]
    return max(found, key=lambda disparity: disparity.gap.value)


def _disparity(
    grouping: Grouping, rate: str, target: Labels, predicted: Labels, among: NDArray[np.bool_], seed: int
) -> Disparity:
    shares = _rates(grouping, target, predicted, among)
    most, least = (choose(grouping.groups, key=lambda group: shares[group.name]) for choose in (max, min))
    positive: NDArray[np.float64] = (predicted == 1).astype(np.float64)

    def values(group: Group) -> NDArray[np.float64]:
        return positive[group.rows[among[group.rows]]]

    return Disparity(grouping.by, rate, gap_of(values(most), values(least), seed=seed), most.name, least.name)


def _rates(grouping: Grouping, target: Labels, predicted: Labels, among: NDArray[np.bool_]) -> dict[str, float]:
    """The share of each group that is given the last class, among some rows."""
    try:
        from fairlearn.metrics import MetricFrame, selection_rate  # type: ignore[attr-defined]
    except ImportError:
        raise DataError(
            "demographic parity and equalized odds need fairlearn: pip install 'sordino[fairness]'."
        ) from None
    rows = np.concatenate([group.rows for group in grouping.groups])
    names = np.concatenate([np.full(len(group.rows), group.name, dtype=object) for group in grouping.groups])
    kept = among[rows]
    frame = MetricFrame(
        metrics=selection_rate,
        y_true=target[rows][kept],
        y_pred=predicted[rows][kept],
        sensitive_features=names[kept],
    )
    return {str(name): float(share) for name, share in frame.by_group.items()}


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
