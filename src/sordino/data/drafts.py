"""Drafts of schemas, computed from tables and from arrays in .npz files.

The content of a draft is as private as the rows: a bound may be the value of one person, or a category may exist
because of one person, and every model trained with it would reveal that. Bounds are rounded outward, so that they are
rarely the value of a person, but this proves nothing. So a draft is marked as read from private rows and as
unconfirmed, and cannot be loaded until a person has confirmed or replaced each fact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from sordino.data.cells import Texts, parsed_numbers
from sordino.data.columns import days_of
from sordino.data.dialect import Dialect
from sordino.data.npz import read_arrays
from sordino.data.table_readers import header_of, pieces_in
from sordino.errors import DataError

MARKERS = ("?", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL")  # of missing cells
MOST_CATEGORIES = 50
_LONGEST_CATEGORY = 80
_FEW = 3  # different strings in a column of numbers that are shown as possible markers
_DATE_FORMATS = (None, "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d")
_REMARK = """\
# A draft. EVERYTHING BELOW WAS READ FROM PRIVATE ROWS, so it is as private as they are. Bounds are rounded outward.
# Replace each bound, category and class by a publicly known one (from a form, a code book, or physical limits), or
# confirm that it is public. Then set confirmed_public = true (until then this file cannot be loaded) and declared_by to
# the person or source that declares these facts public (until then privacy cards say that nobody does).
"""
_OF_TABLES = """\
#
# The target is assumed to be the last column. If one person can have several rows, name the column that identifies
# persons with user = "...", set rows_per_user to the largest number of rows that count for one of them, and remove
# that column below.
"""


def draft(path: Path, *, dialect: Dialect | None = None, missing: Sequence[str] = ()) -> str:
    """Drafts a schema in TOML from a table or a .npz file, marked as unconfirmed.

    `dialect` says how a CSV file is written, and `missing` has further markers of missing cells.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age,ill\\n31,no\\n58,yes\\n")
    >>> "bounds = [\\n    30.0,\\n    60.0,\\n]" in draft(path)
    True
    """
    if path.suffix.lower() == ".npz":
        return _of_arrays(path)
    return _of_table(path, dialect or Dialect(), (*MARKERS, *missing))


def _document(facts: dict[str, object], remarks: str) -> str:
    opening: dict[str, object] = {"confirmed_public": False, "read_from_private_rows": True, "declared_by": ""}
    return f"{_REMARK}{remarks}\n{tomli_w.dumps(opening | facts)}"


def _of_table(path: Path, dialect: Dialect, missing: tuple[str, ...]) -> str:
    header = header_of(path, dialect)
    seen = {name: _ColumnSummary(frozenset({"", None, *missing})) for name in header}
    for cells in pieces_in(path, header, dialect):
        for name, column in seen.items():
            column.update(cells[name].texts())
    decimal = "," if dialect.decimal == "," or any(column.needs_comma for column in seen.values()) else "."
    *names, target = header
    described = {name: seen[name].described(decimal) for name in names}
    said = {"delimiter": dialect.delimiter, "quote": dialect.quote, "escape": dialect.escape}
    document: dict[str, object] = {
        **{name: value for name, value in said.items() if value is not None},
        **({"decimal": ","} if decimal == "," else {}),
        "missing": list(missing),
        "target": {"column": target, **seen[target].as_target(decimal)},
        "columns": {name: column for name, column in described.items() if column},
    }
    left_out = (name for name, column in described.items() if not column)
    return _document(
        document, _OF_TABLES + "".join(f"# Left out: {name!r}, {seen[name].why_not}\n" for name in left_out)
    )


@dataclass
class _Bounds:
    """Smallest and largest value of a column, as long as all of its cells have one."""

    low: float = math.inf
    high: float = -math.inf
    holds: bool = True

    def update(self, values: Sequence[float | None]) -> None:
        self.holds = self.holds and all(value is not None and math.isfinite(value) for value in values)
        if self.holds:
            known = [value for value in values if value is not None]
            self.low, self.high = min([self.low, *known]), max([self.high, *known])


@dataclass
class _ColumnSummary:
    """Bounds and categories of one column in the rows read so far, under each way to write numbers and dates."""

    markers: frozenset[str | None]
    categories: set[str] = field(default_factory=set)
    numbers: dict[str, _Bounds] = field(default_factory=lambda: {mark: _Bounds() for mark in ".,"})
    dates: dict[str | None, _Bounds] = field(default_factory=lambda: {form: _Bounds() for form in _DATE_FORMATS})
    no_numbers: set[str] = field(default_factory=set)
    has_numbers: bool = False
    has_fractions: bool = False

    def update(self, texts: Texts) -> None:
        strings = sorted(str(text) for text in set(texts).difference(self.markers))
        if len(self.categories) <= MOST_CATEGORIES:
            self.categories.update(strings[: MOST_CATEGORIES + 1])
        values = parsed_numbers(strings, ".")
        self.has_numbers = self.has_numbers or bool(np.isfinite(values).any())
        if len(self.no_numbers) <= _FEW:
            strange = [text for text, value in zip(strings, values, strict=True) if not math.isfinite(value)]
            self.no_numbers.update(strange[: _FEW + 1])
        for mark, bounds in self.numbers.items():
            if bounds.holds:
                bounds.update(parsed_numbers(strings, mark).tolist())
        for form, bounds in self.dates.items():
            if bounds.holds:
                bounds.update([days_of(text, form) for text in strings])
        # "1,234" may be a thousand, "1,5" is a fraction
        self.has_fractions = self.has_fractions or any(
            len(text.rpartition(",")[2]) != 3 for text in strings if "," in text
        )

    @property
    def needs_comma(self) -> bool:
        """Whether the cells are numbers if a comma is the mark before decimals, and only then."""
        return self.has_fractions and self.numbers[","].holds and not self.numbers["."].holds

    def described(self, decimal: str) -> dict[str, object] | None:
        """The column as a schema entry, or None if it has neither numbers nor dates nor few categories."""
        if not self.categories:
            return None
        if self.numbers[decimal].holds:
            return {"kind": "number", "bounds": rounded_outward(self.numbers[decimal])}
        for form, bounds in self.dates.items():
            if bounds.holds:
                return {"kind": "date", "bounds": _years(bounds), **({"format": form} if form else {})}
        return {"kind": "category", "categories": sorted(self.categories)} if self._has_few_categories() else None

    def as_target(self, decimal: str) -> dict[str, object]:
        """The column as a target: classes if there are few values, even if they are numbers."""
        if self._has_few_categories():
            return {"classes": sorted(self.categories)}
        is_number = self.numbers[decimal].holds and self.categories
        return {"bounds": rounded_outward(self.numbers[decimal])} if is_number else {"classes": []}

    @property
    def why_not(self) -> str:
        """Why the column is not described."""
        if not self.categories:
            return "because all of its cells are missing."
        if self.has_numbers and len(self.no_numbers) <= _FEW:
            shown = ", ".join(f"{text!r:.40}" for text in sorted(self.no_numbers))
            return f"because not all of its cells are numbers: if these mark missing ones, add them to missing: {shown}"
        return f"because it has more than {MOST_CATEGORIES} different strings, or long ones."

    def _has_few_categories(self) -> bool:
        return 0 < len(self.categories) <= MOST_CATEGORIES and max(map(len, self.categories)) <= _LONGEST_CATEGORY


def rounded_outward(bounds: _Bounds) -> list[float]:
    """Bounds rounded outward to a multiple of the power of ten below their distance.

    >>> rounded_outward(_Bounds(23, 87)), rounded_outward(_Bounds(-1.34, 1.51)), rounded_outward(_Bounds(3, 3))
    ([20.0, 90.0], [-2.0, 2.0], [3.0, 4.0])
    """
    low, high = bounds.low, bounds.high
    if low == high:
        return [math.floor(low) * 1.0, math.floor(low) + 1.0]
    exponent = math.floor(math.log10(high - low))
    if exponent < 0:  # division by a whole power of ten rounds correctly
        scale = 10.0**-exponent
        return [math.floor(low * scale) / scale, math.ceil(high * scale) / scale]
    step = 10**exponent
    return [float(math.floor(low / step) * step), float(math.ceil(high / step) * step)]


def _years(bounds: _Bounds) -> list[str]:
    """Bounds of dates rounded outward to years, or to decades if they are more than ten years apart."""
    first, last = (_EPOCH + timedelta(days=days) for days in (bounds.low, bounds.high))
    step = 10 if last.year - first.year > 10 else 1
    low, high = first.year // step * step, (last.year // step + 1) * step
    return [f"{max(1, low):04}-01-01", f"{min(9999, high):04}-01-01"]


_EPOCH = datetime(1970, 1, 1)


def _of_arrays(path: Path) -> str:
    """Shape and range of inputs, and classes or bounds of the target."""
    arrays, shown = read_arrays(path), repr(str(path))
    if not {"inputs", "target"} <= arrays.keys() or not (arrays["inputs"].size and arrays["target"].size):
        raise DataError(f"{shown} must contain arrays named inputs and target that are not empty.")
    inputs, target = arrays["inputs"], arrays["target"]
    facts: dict[str, object] = {
        "inputs": {
            "shape": list(inputs.shape[1:] or (1,)),
            "range": [0.0, 255.0] if inputs.dtype == np.uint8 else rounded_outward(_finite_bounds(inputs)),
        },
        "target": (
            {"classes": max(2, int(target.max()) + 1)}
            if target.dtype.kind in "iu"
            else {"bounds": rounded_outward(_finite_bounds(target))}
        ),
    }
    has_users = "owners" in arrays
    if has_users:
        most = int(np.unique(arrays["owners"], return_counts=True)[1].max())
        facts = {"rows_per_user": most, **facts}
    return _document(facts, "# rows_per_user is the largest number of rows that count for one user.\n" * has_users)


def _finite_bounds(values: NDArray[Any]) -> _Bounds:
    known = values[np.isfinite(values)]
    return _Bounds(float(known.min()), float(known.max())) if known.size else _Bounds(0.0, 1.0)
