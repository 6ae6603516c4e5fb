"""Schemas of tables: public facts about columns, classes and users, and a draft made from a file.

A schema to begin with, read off a table. What it says is as private as the rows, until a person has confirmed it.

A bound that is somebody's own value, or a category that one person brought in, would tell of them in every model that
is trained with it. So a draft says about itself that it is not confirmed, and cannot be loaded as it is.

The public facts of a table: its columns, their bounds and categories, the classes, who owns a row.

confirmed_public = true            # a person has made sure that nothing here was read off private rows
user = "patient"                   # optional: the privacy unit is the user, with at most so many rows
rows_per_user = 10
groups = ["sex"]                   # optional: category columns by which results are compared
missing = "?"                      # optional: what stands for a missing cell, beside an empty one

[target]
column = "diagnosis"
classes = ["healthy", "ill"]       # or bounds = [0, 100] where the target is a number

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
# A draft. EVERYTHING BELOW WAS READ OFF THE FILE, and so is as private as its rows.
# Replace each bound, category and class by what is publicly known (what a form allows, what a code book lists, what
# nature permits), or confirm that it is. Then set confirmed_public = true. Until then it will not load.
#
# The target was guessed to be the last column. If one person can have several rows, name the column that identifies
# them: user = "...", with rows_per_user = the most rows that count for one of them; and take it out of the columns.
"""


def draft(path: Path) -> str:
    """A schema in TOML for a .csv or .parquet file, marked as unconfirmed.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age,ill\\n30,no\\n60,yes\\n")
    >>> "confirmed_public = false" in draft(path)
    True
    """
    header = header_of(path)
    seen = {name: _Seen() for name in header}
    for cells in pieces_in(path, header):
        for name, column in seen.items():
            column.look_at(cells[name])
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
class _Seen:
    """What was seen of one column so far."""

    low: float = math.inf
    high: float = -math.inf
    all_numbers: bool = True
    categories: set[str] = field(default_factory=set)

    def look_at(self, cells: Cells) -> None:
        for cell in set(cells).difference(_MISSING):
            text = str(cell)
            if len(self.categories) <= MOST_CATEGORIES:
                self.categories.add(text)
            if self.all_numbers:
                self._look_at_number(text)

    def _look_at_number(self, text: str) -> None:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        self.all_numbers = math.isfinite(number)
        self.low, self.high = min(self.low, number), max(self.high, number)

    def described(self) -> dict[str, object] | None:
        """As a column, or None where a schema has no words for it."""
        if self.categories and self.all_numbers:
            return {"kind": "number", "bounds": self._bounds()}
        return {"kind": "category", "categories": sorted(self.categories)} if self._are_few() else None

    def as_target(self) -> dict[str, object]:
        """Numbers are classes too where there are few of them."""
        if self._are_few():
            return {"classes": sorted(self.categories)}
        return {"bounds": self._bounds()} if self.all_numbers and self.categories else {"classes": []}

    def _bounds(self) -> list[float]:
        return [self.low, self.high if self.low < self.high else self.low + 1]

    def _are_few(self) -> bool:
        return 0 < len(self.categories) <= MOST_CATEGORIES and max(map(len, self.categories)) <= _LONGEST_CATEGORY


def _left_out(name: str) -> str:
    return f"# Left out, because it holds no numbers and too many different texts, or nothing: {name!r}\n"


MOST_FEATURES = 100_000


@dataclass(frozen=True)
class TargetColumn:
    """The column that is predicted, and what it holds."""

    name: str
    kind: Column


@dataclass(frozen=True)
class User:
    """The column that says whose row it is, and the public bound on the rows of one user."""

    name: str
    most_rows: int


@dataclass(frozen=True)
class Schema:
    """What is public about a table. Two tables of one schema become inputs and targets in the same way.

    `units` is the public number of privacy units, where it is stated: of users, or of rows where nobody owns several.

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
                raise UsageError(f"the {role} column {name!r} must not be among the columns that predict.")
        if self.user and self.user.name == self.target.name:
            raise UsageError(f"user and target must be two columns, got {self.target.name!r} for both.")
        for name in self.groups:
            if not isinstance(self.columns.get(name), Category):
                raise UsageError(f"groups must be columns of kind 'category', got {name!r}.")
        for name, column in (*self.columns.items(), (self.target.name, self.target.kind)):
            if isinstance(column, Category) and not self.missing.isdisjoint(column.categories):
                raise UsageError(f"column {name!r} has a category that stands for a missing cell, which is none.")

    @classmethod
    def read(cls, path: Path) -> Schema:
        """The schema in a TOML file. It is named like the file unless it says otherwise."""
        shown = repr(str(path))
        return cls.parse(read_bytes(path, at_most=LARGEST_TEXT), shown=shown, name=path.stem, folder=path.parent)

    @classmethod
    def parse(cls, text: str | bytes, *, shown: str, name: str, folder: Path) -> Schema:
        """The schema in a TOML text. `shown` names it in messages; `test` is looked for in `folder`."""
        return _schema(Table.parse(text, what=shown), name, folder)

    @property
    def num_features(self) -> int:
        """How many inputs a row becomes."""
        return sum(column.width for column in self.columns.values())

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns that a table needs for training."""
        return (*self.columns, self.target.name, *([self.user.name] if self.user else []))

    def facts(self) -> Facts:
        """The same for whoever does not care about columns. Every input lies in [-1, 1]."""
        kind = self.target.kind
        if isinstance(kind, Category):
            classes = kind.categories
            return Facts(self.name, (self.num_features,), len(classes), (-1.0, 1.0), class_names=classes)
        bounds = (kind.low, kind.high)
        return Facts(self.name, (self.num_features,), None, (-1.0, 1.0), target_range=bounds)

    def encode(self, cells: Mapping[str, Cells]) -> Tensor:
        """Inputs of shape (rows, num_features), float32. A row with an unreadable number has a NaN."""
        return torch.from_numpy(np.concatenate([c.encode(cells[n], self.missing) for n, c in self.columns.items()], 1))

    def labels(self, cells: Mapping[str, Cells]) -> Tensor:
        """Targets: the class, or -1; or a number scaled to [-1, 1], or NaN."""
        return torch.from_numpy(self.target.kind.labels(cells[self.target.name], self.missing))

    def group_labels(self, cells: Mapping[str, Cells]) -> dict[str, Tensor]:
        """For each group column the position in its categories, or -1."""
        return {name: torch.from_numpy(self.columns[name].labels(cells[name], self.missing)) for name in self.groups}


_KEYS = ("name", "confirmed_public", "user", "rows_per_user", "groups", "missing", "units", "test", "target", "columns")


def _schema(top: Table, name: str, folder: Path) -> Schema:
    top.allow(*_KEYS)
    if "confirmed_public" not in top or not top.truth("confirmed_public"):
        raise UsageError(
            f"{top.what}: confirmed_public must be true: a person has to confirm that these facts are public, and "
            "would be the same without any of the private rows."
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
        raise UsageError(f"{table.what}: either classes or bounds must be there, got both or neither.")
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
