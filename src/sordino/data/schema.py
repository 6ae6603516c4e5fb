"""Schemas of tables: public facts about columns, classes and users.

confirmed_public = true            # a person has checked that nothing here was computed from private rows
declared_by = "A. Person"          # optional: who declares these facts public; the privacy card says so
read_from_private_rows = true      # in drafts: the privacy card repeats it until `declared_by` names somebody
user = "patient"                   # optional: column of users; the privacy unit is then the user
rows_per_user = 10                 # with user: rows of one user that count, at most
groups = ["sex"]                   # optional: category columns by which results are compared
missing = ["?", "NA"]              # optional: markers of a missing cell, besides an empty one
delimiter = ";"                    # optional, as quote, escape and decimal: how a CSV file is written

[target]
column = "diagnosis"
classes = ["healthy", "ill"]       # or bounds = [0, 100] for a regression target

[columns.age]
kind = "number"
bounds = [0, 120]

[columns.admitted]
kind = "date"
bounds = ["2015-01-01", "2025-01-01"]

[columns.sex]
kind = "category"
categories = ["female", "male"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino._input import validate
from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.data.cells import Cells, Missing, Texts
from sordino.data.columns import Category, Column, DateColumn, NumberColumn
from sordino.data.dataset import Facts
from sordino.data.declaration import UNNAMED, Declaration
from sordino.data.dialect import DETECTED, Dialect
from sordino.errors import UsageError

MOST_FEATURES = 100_000


@dataclass(frozen=True)
class TargetColumn:
    """The column to predict, with its categories or bounds."""

    name: str
    kind: Category | NumberColumn


@dataclass(frozen=True)
class User:
    """The column that identifies users, and the public bound on the rows of one user."""

    name: str
    most_rows: int


@dataclass(frozen=True)
class Schema:
    """Public facts about a table. Two tables with one schema are encoded in the same way.

    `units` is the public number of privacy units, if it is declared: of users, or of rows if there is no user column.

    >>> columns = {"age": NumberColumn(0, 100), "sex": Category(("female", "male"))}
    >>> schema = Schema("people", TargetColumn("ill", Category(("no", "yes"))), columns)
    >>> schema.num_features
    3
    >>> schema.encode({"age": ["25", "old"], "sex": ["male", "female"]})
    tensor([[-0.5000,  0.0000,  1.0000],
            [    nan,  1.0000,  0.0000]])
    """

    name: str
    target: TargetColumn
    columns: Mapping[str, Column]
    user: User | None = None
    groups: tuple[str, ...] = ()
    missing: Missing = frozenset({"", None})
    units: int | None = None
    test: Path | None = None
    dialect: Dialect = DETECTED
    declaration: Declaration = UNNAMED

    def __post_init__(self) -> None:
        validate.count(at_most=MOST_FEATURES, **{"the number of inputs of all columns together": self.num_features})
        for role, name in (("target", self.target.name), ("user", self.user and self.user.name)):
            if name in self.columns:
                raise UsageError(f"the {role} column {name!r} must not be among the feature columns.")
        if self.user and self.user.name == self.target.name:
            raise UsageError(f"user and target must be different columns, got {self.target.name!r} for both.")
        for name in self.groups:
            if not isinstance(self.columns.get(name), Category):
                raise UsageError(f"groups must be columns of kind 'category', got {name!r}.")
        for name, column in (*self.columns.items(), (self.target.name, self.target.kind)):
            if isinstance(column, Category) and not self.missing.isdisjoint(column.categories):
                marker = min(str(each) for each in self.missing & set(column.categories))
                raise UsageError(
                    f"column {name!r}: category {marker!r:.80} is declared as the marker of missing cells: remove it "
                    "from the categories, or choose another marker."
                )

    @classmethod
    def read(cls, path: Path) -> Schema:
        """Reads a TOML file. The schema is named like the file, unless `name` is set in it."""
        shown = repr(str(path))
        return cls.parse(read_bytes(path, at_most=LARGEST_TEXT), shown=shown, name=path.stem, folder=path.parent)

    @classmethod
    def parse(cls, text: str | bytes, *, shown: str, name: str, folder: Path) -> Schema:
        """Parses TOML. `shown` names it in messages; the path `test` is relative to `folder`."""
        return _schema(Table.parse(text, what=shown), name, folder)

    @property
    def num_features(self) -> int:
        """Number of inputs that a row is encoded as."""
        return sum(column.width for column in self.columns.values())

    @property
    def needed(self) -> tuple[str, ...]:
        """Names of the columns that a table needs for training."""
        return (*self.columns, self.target.name, *([self.user.name] if self.user else []))

    def facts(self) -> Facts:
        """The public facts as `Facts`, without columns. Every input lies in [-1, 1]."""
        kind = self.target.kind
        if isinstance(kind, Category):
            classes = kind.categories
            return Facts(self.name, (self.num_features,), len(classes), (-1.0, 1.0), class_names=classes)
        bounds = (kind.low, kind.high)
        return Facts(self.name, (self.num_features,), None, (-1.0, 1.0), target_range=bounds)

    def encode(self, cells: Mapping[str, Cells | Texts]) -> Tensor:
        """Encoded inputs, float32, shape (rows, num_features). A row with an invalid number has a NaN."""
        return torch.from_numpy(np.concatenate([c.encode(cells[n], self.missing) for n, c in self.columns.items()], 1))

    def labels(self, cells: Mapping[str, Cells | Texts]) -> Tensor:
        """Targets: class index or -1, or for regression a value scaled to [-1, 1] or NaN."""
        return torch.from_numpy(self.target.kind.labels(cells[self.target.name], self.missing))

    def group_labels(self, cells: Mapping[str, Cells | Texts]) -> dict[str, Tensor]:
        """For each group column, the index of the category of each row, or -1."""
        kinds = {name: self.columns[name] for name in self.groups}
        return {
            name: torch.from_numpy(kind.labels(cells[name], self.missing))
            for name, kind in kinds.items()
            if isinstance(kind, Category)
        }


_OF_DIALECT = ("delimiter", "quote", "escape", "decimal")
_KEYS = (
    *("name", "user", "rows_per_user", "groups", "missing", "units", "test", "target", "columns"),
    *(*Declaration.KEYS, *_OF_DIALECT),
)


def _schema(top: Table, name: str, folder: Path) -> Schema:
    top.allow(*_KEYS)
    declaration = Declaration.parse(top)
    target, columns, user = _target(top.table("target")), _columns(top.table("columns")), _user(top)
    with top.named():
        schema = Schema(
            name=top.text("name") if "name" in top else name,
            target=target,
            columns=columns,
            user=user,
            groups=top.texts("groups") if "groups" in top else (),
            missing=frozenset({"", None, *_markers(top)}),
            units=top.whole("units") if "units" in top else None,
            test=folder / top.text("test") if "test" in top else None,
            dialect=Dialect(**{key: top.text(key) for key in _OF_DIALECT if key in top}),
            declaration=declaration,
        )
    return schema


def _markers(top: Table) -> tuple[str, ...]:
    """Markers of missing cells: one string, or a list of them."""
    if "missing" not in top:
        return ()
    return top.texts("missing") if isinstance(top.entries["missing"], list) else (top.text("missing"),)


def _target(table: Table) -> TargetColumn:
    table.allow("column", "classes", "bounds")
    if ("classes" in table) == ("bounds" in table):
        raise UsageError(f"{table.what}: exactly one of classes and bounds must be given, got both or neither.")
    if "bounds" in table:
        return TargetColumn(table.text("column"), _number(table))
    classes = _category(table, "classes")
    if classes.width < 2:
        raise UsageError(f"{table.what}: classes must be at least 2, got {classes.width}.")
    return TargetColumn(table.text("column"), classes)


def _columns(table: Table) -> dict[str, Column]:
    return {name: _column(table.table(name)) for name in table.entries}


def _column(table: Table) -> Column:
    match table.text("kind"):
        case "number":
            table.allow("kind", "bounds")
            return _number(table)
        case "date":
            table.allow("kind", "bounds", "format")
            return _date(table)
        case "category":
            table.allow("kind", "categories")
            return _category(table, "categories")
        case other:
            raise UsageError(f"{table.what}: kind must be 'number', 'date' or 'category', got {other[:80]!r}.")


def _number(table: Table) -> NumberColumn:
    bounds = table.numbers("bounds")
    if len(bounds) != 2:
        raise UsageError(f"{table.what}: bounds must be [low, high], got {len(bounds)} numbers.")
    with table.named():
        number = NumberColumn(*bounds)
    return number


def _date(table: Table) -> DateColumn:
    bounds = table.dates("bounds")
    if len(bounds) != 2:
        raise UsageError(f"{table.what}: bounds must be [earliest, latest], got {len(bounds)} dates.")
    with table.named():
        dates = DateColumn(*bounds, format=table.text("format") if "format" in table else None)
    return dates


def _category(table: Table, key: str) -> Category:
    names = table.texts(key)
    with table.named():
        category = Category(names)
    return category


def _user(top: Table) -> User | None:
    if "user" not in top and "rows_per_user" not in top:
        return None
    return User(top.text("user"), top.whole("rows_per_user"))
