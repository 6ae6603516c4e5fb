"""Accuracy by group, parity measures, and accuracy lost compared with a reference model.

Groups of public rows are formed by class, by the values of a column, and by the values of several columns together.

Parity is measured for two classes, of which the last counts as the favorable one. Demographic parity compares how often
groups are predicted the last class; equalized odds compare that among rows of the last class and among rows of the
first (Hardt, Price and Srebro 2016). The rates are those of `fairlearn`.
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
from sordino.recipes import FinishedRun

FEW = 30  # rows: an accuracy on fewer has too wide an interval to compare


@dataclass(frozen=True)
class Group:
    """Indices of the rows of one group. `by` is the class or column that defines it."""

    by: str
    name: str
    rows: NDArray[np.int64] = field(repr=False)

    @property
    def is_small(self) -> bool:
        return len(self.rows) < FEW


@dataclass(frozen=True)
class Grouping:
    """All groups of one class or column that have rows, and the names of those that have none."""

    by: str
    groups: tuple[Group, ...]
    empty: tuple[str, ...] = ()


def by_class(target: Tensor, facts: Facts) -> Grouping:
    """Groups rows by their label.

    >>> grouping = by_class(torch.tensor([0, 2, 2]), Facts("things", (1,), 3, class_names=("cat", "dog", "eel")))
    >>> [(group.name, len(group.rows)) for group in grouping.groups], grouping.empty
    ([('cat', 1), ('eel', 2)], ('dog',))
    """
    names = facts.class_names or tuple(str(label) for label in range(facts.num_classes or 0))
    return _grouping("class", [(name, target == label) for label, name in enumerate(names)])


def by_columns(rows: Split, names: dict[str, tuple[str, ...]], columns: Sequence[str]) -> Grouping:
    """Groups rows by the values of one column, or of several together. Rows with an unknown value are in no group.

    >>> split = Split(torch.zeros(3, 1), torch.zeros(3), groups={"sex": torch.tensor([0, 1, -1])})
    >>> [group.name for group in by_columns(split, {"sex": ("female", "male")}, ["sex"]).groups]
    ['female', 'male']
    """
    masks = []
    for labels in product(*(range(len(names[column])) for column in columns)):
        chosen = torch.ones(len(rows.target), dtype=torch.bool)
        for column, label in zip(columns, labels, strict=True):
            chosen &= rows.groups[column] == label
        masks.append((", ".join(names[c][label] for c, label in zip(columns, labels, strict=True)), chosen))
    grouping = _grouping(" and ".join(columns), masks)
    if not grouping.groups:
        raise DataError(f"no public row has a known value of group column {grouping.by}.")
    return grouping


def groupings(rows: Split, saved: FinishedRun, columns: Sequence[str]) -> tuple[Grouping, ...]:
    """Groups rows by class, by each of `columns`, and by all of them together. Default: all declared group columns."""
    declared = tuple(rows.groups)
    for column in columns:
        if column not in declared:
            allowed = f"declared are {', '.join(declared)}" if declared else f"{saved.facts.name!r} declares none"
            raise UsageError(f"there is no group column {validate.option(column)}: {allowed}.")
    chosen = tuple(dict.fromkeys(columns)) or declared
    names = _names(rows, saved)
    together = [chosen] if len(chosen) > 1 else []
    of_columns = [by_columns(rows, names, each) for each in (*((column,) for column in chosen), *together)]
    return by_class(rows.target, saved.facts), *of_columns


def _grouping(by: str, masks: Sequence[tuple[str, Tensor]]) -> Grouping:
    groups = [Group(by, name, np.flatnonzero(mask.numpy())) for name, mask in masks]
    return Grouping(
        by,
        tuple(group for group in groups if len(group.rows)),
        tuple(group.name for group in groups if not len(group.rows)),
    )


def _names(rows: Split, saved: FinishedRun) -> dict[str, tuple[str, ...]]:
    """The name of each label of each group column, from the schema if there is one."""
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
    """The largest difference of a rate between two groups, with an interval for these two groups."""

    by: str
    rate: str
    gap: Interval
    most: str
    least: str

    @property
    def words(self) -> str:
        return f"the {self.rate} is {self.gap.points} points higher for {self.most} than for {self.least}."


def demographic_parity(grouping: Grouping, target: Labels, predicted: Labels, last: str, *, seed: int) -> Disparity:
    """The largest difference in how often groups are predicted the last class, whose name is `last`.

    >>> from sordino.effects.groups import Group
    >>> groups = Grouping("sex", (Group("sex", "f", np.arange(4)), Group("sex", "m", np.arange(4, 8))))
    >>> labels, predicted = np.array([0, 1] * 4), np.array([0, 0, 0, 1, 1, 1, 1, 0])
    >>> disparity = demographic_parity(groups, labels, predicted, "yes", seed=0)
    >>> disparity.most, disparity.least, disparity.gap.value
    ('m', 'f', 0.5)
    """
    all_rows = np.ones(len(target), bool)
    return _disparity(grouping, f"rate of predicting {last!r}", target, predicted, all_rows, seed)


def equalized_odds(grouping: Grouping, target: Labels, predicted: Labels, last: str, *, seed: int) -> Disparity:
    """The larger of the differences in true and false positive rates. Each group needs rows of both classes."""
    for group in grouping.groups:
        if len(np.unique(target[group.rows])) < 2:
            raise DataError(
                f"equalized odds need rows of both classes in each group, and {group.name!r:.80} has rows of one."
            )
    rates = {f"true positive rate of {last!r}": target == 1, f"false positive rate of {last!r}": target == 0}
    disparities = [_disparity(grouping, rate, target, predicted, among, seed) for rate, among in rates.items()]
    return max(disparities, key=lambda disparity: disparity.gap.value)


def _disparity(
    grouping: Grouping, rate: str, target: Labels, predicted: Labels, among: NDArray[np.bool_], seed: int
) -> Disparity:
    rates = _rates(grouping, target, predicted, among)
    most, least = (choose(grouping.groups, key=lambda group: rates[group.name]) for choose in (max, min))
    positive: NDArray[np.float64] = (predicted == 1).astype(np.float64)

    def values(group: Group) -> NDArray[np.float64]:
        return positive[group.rows[among[group.rows]]]

    return Disparity(grouping.by, rate, gap_of(values(most), values(least), seed=seed), most.name, least.name)


def _rates(grouping: Grouping, target: Labels, predicted: Labels, among: NDArray[np.bool_]) -> dict[str, float]:
    """The fraction of each group that is predicted the last class, among the rows of the mask `among`."""
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
    return {str(name): float(rate) for name, rate in frame.by_group.items()}


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy of the model on a group, and `lost`: accuracy of the reference model minus that of the model."""

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
    """The accuracy of each group. `right` and `reference` are 0 to 1 for each row: whether its prediction is right.

    Reference and model are compared row by row, so rows that are hard for both do not widen the interval of the loss.

    >>> groups = Grouping("class", (Group("class", "cat", np.arange(2)), Group("class", "dog", np.arange(2, 4))))
    >>> by_group = accuracies(groups, np.array([1.0, 1.0, 0.0, 1.0]), np.ones(4), seed=0)
    >>> [(each.name, each.accuracy.value, each.lost.value) for each in by_group]
    [('cat', 1.0, 0.0), ('dog', 0.5, 0.5)]
    """

    def of(group: Group) -> GroupAccuracy:
        own = right[group.rows]
        lost = None if reference is None else change_of(reference[group.rows] - own, seed=seed)
        return GroupAccuracy(group.by, group.name, len(group.rows), mean_of(own, seed=seed), lost)

    return tuple(of(group) for group in grouping.groups)


def who_lost(groups: Sequence[GroupAccuracy], beside: str) -> str:
    """States which groups lost most and least accuracy: one sentence on groups of people, if any, and one on classes.

    `beside` names the reference model. Groups are compared by the ends of their intervals, so that a small group whose
    loss may be due to chance is not named first. People are grouped by all columns together.

    >>> def group(by, name, *lost):
    ...     return GroupAccuracy(by, name, 500, Interval(0.8, 0.7, 0.9), Interval(*lost))
    >>> both = group("sex", "Female", 0.041, 0.02, 0.063), group("sex", "Male", 0.012, 0.01, 0.014)
    >>> print(who_lost(both, "it"))
    Compared with it, accuracy is 4.1 points lower for Female (2.0 to 6.3) and 1.2 points lower for Male (1.0 to 1.4).
    """
    kinds = dict.fromkeys((groups[-1].by, "class"))
    sentences = [_extremes([group for group in groups if group.by == kind]) for kind in kinds]
    known = [each for each in sentences if each]
    if not known:
        return f"Fewer than two groups have {FEW} public rows, too few to compare their losses."
    return f"Compared with {beside}, " + " By class, ".join(known)


def _extremes(groups: Sequence[GroupAccuracy]) -> str:
    known = [(each, each.lost) for each in groups if each.lost is not None and each.rows >= FEW]
    if len(known) < 2:
        return ""
    most, more = max(known, key=lambda pair: pair[1].low)
    least, less = min((pair for pair in known if pair[0] is not most), key=lambda pair: pair[1].high)
    sentence = f"accuracy is {_change(more, most.label)} and {_change(less, least.label)}."
    if more.low > less.high:
        return sentence
    return f"{sentence} The intervals overlap: the difference may be due to chance."


def _change(lost: Interval, label: str) -> str:
    word, sign = ("lower", 1) if lost.value >= 0 else ("higher", -1)
    low, high = sorted((sign * lost.low, sign * lost.high))
    return f"{in_points(abs(lost.value))} points {word} for {label} ({in_points(low)} to {in_points(high)})"
