"""A schema to begin with, read off a table. What it says is as private as the rows, until a person has confirmed it.

A bound that is somebody's own value, or a category that one person brought in, would tell of them in every model that
is trained with it. So a draft says about itself that it is not confirmed, and cannot be loaded as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

from sordino.data.columns import Cells
from sordino.data.table_file import header_of, pieces_in

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
