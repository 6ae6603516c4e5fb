"""Schemas of tables: public facts about columns, classes and users, and a draft made from a file.

`draft` computes a schema from a table. Its content is as private as the rows: a bound may be the value of one person,
or a category may exist because of one person, and every model trained with it would reveal that. So a draft is marked
as unconfirmed, and cannot be loaded until a person has confirmed or replaced each fact.

confirmed_public = true            # a person has checked that nothing here was computed from private rows
user = "patient"                   # optional: column of users; the privacy unit is then the user
rows_per_user = 10                 # with user: rows of one user that count, at most
groups = ["sex"]                   # optional: category columns by which results are compared
missing = "?"                      # optional: marker of a missing cell, besides an empty one

[target]
column = "diagnosis"
classes = ["healthy", "ill"]       # or bounds = [0, 100] for a regression target

[columns.age]
kind = "number"
bounds = [0, 120]

[columns.sex]
kind = "category"
categories = ["female", "male"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tomli_w
import torch
from torch import Tensor

from sordino._input import validate
from sordino._input.files import read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.data.columns import Category, Cells, Column, Missing, NumberColumn
from sordino.data.dataset import Facts
from sordino.data.table_readers import header_of, pieces_in
from sordino.errors import UsageError

MOST_CATEGORIES = 50
_LONGEST_CATEGORY = 80
_MISSING = ("", None, "?")
_REMARK = """\
# A draft. EVERYTHING BELOW WAS COMPUTED FROM THE FILE, so it is as private as its rows.
# Replace each bound, category and class by a publicly known one (from a form, a code book, or physical limits), or
# confirm that it is public. Then set confirmed_public = true. Until then this file cannot be loaded.
#
# The target is assumed to be the last column. If one person can have several rows, name the column that identifies
# persons with user = "...", set rows_per_user to the largest number of rows that count for one of them, and remove
# that column below.
"""


def draft(path: Path) -> str:
    """Drafts a schema in TOML from a .csv or .parquet file, marked as unconfirmed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age,ill\\n30,no\\n60,yes\\n")
    >>> "confirmed_public = false" in draft(path)
    True
    """
    header = header_of(path)
    seen = {name: _ColumnSummary() for name in header}
    for cells in pieces_in(path, header):
        for name, column in seen.items():
            column.update(cells[name])
    *names, target = header
    described = {name: seen[name].described() for name in names}
    document = {
        "confirmed_public": False,
        "missing": "?",
        "target": {"column": target, **seen[target].as_target()},
        "columns": {name: column for name, column in described.items() if column},
    }
    remarks = "".join(_left_out(name) for name, column in described.items() if not column)
    return f"{_REMARK}{remarks}\n{tomli_w.dumps(document)}"


@dataclass
class _ColumnSummary:
    """Bounds and categories of one column in the rows read so far."""

    low: float = math.inf
    high: float = -math.inf
    all_numbers: bool = True
    categories: set[str] = field(default_factory=set)

    def update(self, cells: Cells) -> None:
        for cell in set(cells).difference(_MISSING):
            text = str(cell)
            if len(self.categories) <= MOST_CATEGORIES:
                self.categories.add(text)
            if self.all_numbers:
                self._update_bounds(text)

    def _update_bounds(self, text: str) -> None:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        self.all_numbers = math.isfinite(number)
        self.low, self.high = min(self.low, number), max(self.high, number)

    def described(self) -> dict[str, object] | None:
        """The column as a schema entry, or None if it has neither numbers nor few categories."""
        if self.categories and self.all_numbers:
            return {"kind": "number", "bounds": self._bounds()}
        return {"kind": "category", "categories": sorted(self.categories)} if self._has_few_categories() else None

    def as_target(self) -> dict[str, object]:
        """The column as a target: classes if there are few values, even if they are numbers."""
        if self._has_few_categories():
            return {"classes": sorted(self.categories)}
        return {"bounds": self._bounds()} if self.all_numbers and self.categories else {"classes": []}

    def _bounds(self) -> list[float]:
        return [self.low, self.high if self.low < self.high else self.low + 1]

    def _has_few_categories(self) -> bool:
        return 0 < len(self.categories) <= MOST_CATEGORIES and max(map(len, self.categories)) <= _LONGEST_CATEGORY


def _left_out(name: str) -> str:
    return f"# Left out, because it has too many different strings, or no values: {name!r}\n"


MOST_FEATURES = 100_000


@dataclass(frozen=True)
class TargetColumn:
    """The column to predict, with its categories or bounds."""

    name: str
    kind: Column


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

    def encode(self, cells: Mapping[str, Cells]) -> Tensor:
        """Encoded inputs, float32, shape (rows, num_features). A row with an invalid number has a NaN."""
        return torch.from_numpy(np.concatenate([c.encode(cells[n], self.missing) for n, c in self.columns.items()], 1))

    def labels(self, cells: Mapping[str, Cells]) -> Tensor:
        """Targets: class index or -1, or for regression a value scaled to [-1, 1] or NaN."""
        return torch.from_numpy(self.target.kind.labels(cells[self.target.name], self.missing))

    def group_labels(self, cells: Mapping[str, Cells]) -> dict[str, Tensor]:
        """For each group column, the index of the category of each row, or -1."""
        return {name: torch.from_numpy(self.columns[name].labels(cells[name], self.missing)) for name in self.groups}


_KEYS = ("name", "confirmed_public", "user", "rows_per_user", "groups", "missing", "units", "test", "target", "columns")


def _schema(top: Table, name: str, folder: Path) -> Schema:
    top.allow(*_KEYS)
    if "confirmed_public" not in top or not top.truth("confirmed_public"):
        raise UsageError(
            f"{top.what}: confirmed_public must be true: a person has to confirm that no fact was computed from "
            "private rows."
        )
    target, columns, user = _target(top.table("target")), _columns(top.table("columns")), _user(top)
    with top.named():
        schema = Schema(
            name=top.text("name") if "name" in top else name,
            target=target,
            columns=columns,
            user=user,
            groups=top.texts("groups") if "groups" in top else (),
            missing=frozenset({"", None, top.text("missing") if "missing" in top else ""}),
            units=top.whole("units") if "units" in top else None,
            test=folder / top.text("test") if "test" in top else None,
        )
    return schema


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
        case "category":
            table.allow("kind", "categories")
            return _category(table, "categories")
        case other:
            raise UsageError(f"{table.what}: kind must be 'number' or 'category', got {other[:80]!r}.")


def _number(table: Table) -> NumberColumn:
    bounds = table.numbers("bounds")
    if len(bounds) != 2:
        raise UsageError(f"{table.what}: bounds must be [low, high], got {len(bounds)} numbers.")
    with table.named():
        number = NumberColumn(*bounds)
    return number


def _category(table: Table, key: str) -> Category:
    names = table.texts(key)
    with table.named():
        category = Category(names)
    return category


def _user(top: Table) -> User | None:
    if "user" not in top and "rows_per_user" not in top:
        return None
    return User(top.text("user"), top.whole("rows_per_user"))
