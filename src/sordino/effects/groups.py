"""Groups of public rows: by class, by what a column says, and by what several columns say together."""

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
from sordino.data.adult import adult_schema
from sordino.data.columns import Category
from sordino.data.schema import Schema
from sordino.errors import DataError, UsageError
from sordino.recipes import FinishedRun

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


def groupings(rows: Split, saved: FinishedRun, columns: Sequence[str]) -> tuple[Grouping, ...]:
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


def _names(rows: Split, saved: FinishedRun) -> dict[str, tuple[str, ...]]:
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
