"""Columns of a table: their public bounds or categories, and the encoding of their cells as numbers.

No value of a cell raises an error: values are private, and a message would reveal that a record exists. A missing cell
is encoded without information. A number or date that cannot be parsed or is not finite becomes NaN, and its whole row
then counts as absent (`sordino.kernel.records`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.data.cells import Cells, Missing, Texts, cells_of
from sordino.errors import UsageError

LARGEST_BOUND = 1e30
MOST_CATEGORIES = 10_000


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column. Values are clamped to public bounds, then scaled so that `low` is -1 and `high` is 1.

    >>> NumberColumn(0.0, 10.0).encode(["0", "7.5", "12", "", "ten"], frozenset({""}))[:, 0]
    array([-1. ,  0.5,  1. ,  0. ,  nan], dtype=float32)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_bounds(self.low, self.high)

    @property
    def width(self) -> int:
        """Number of inputs that the column is encoded as."""
        return 1

    def encode(self, cells: Cells | Texts, missing: Missing) -> NDArray[np.float32]:
        """Scaled values, shape (rows, 1). A missing cell is 0, the middle of the bounds."""
        cells = cells_of(cells)
        return _scaled(cells.numbers(), cells.are_missing(missing), self.low, self.high)

    def labels(self, cells: Cells | Texts, missing: Missing) -> NDArray[np.float32]:
        """Scaled targets, shape (rows,). A missing target is NaN, so its row counts as absent."""
        cells = cells_of(cells)
        return np.where(cells.are_missing(missing), np.float32(math.nan), self.encode(cells, missing)[:, 0])


_SECONDS_A_DAY = 86400.0
_DIRECTIVES = frozenset("%Y %y %m %d %j %H %M %S %f %%".split())


@dataclass(frozen=True)
class DateColumn:
    """A column of dates or times, as numbers of days since 1970, clamped to public bounds and scaled to [-1, 1].

    Without a `format` of `strptime` the cells are in ISO 8601. A time without a zone is taken as UTC.

    >>> dates = DateColumn("2020-01-01", "2020-01-11", format="%d.%m.%Y")
    >>> dates.encode(["01.01.2020", "06.01.2020", "", "soon"], frozenset({""}))[:, 0]
    array([-1.,  0.,  0., nan], dtype=float32)
    """

    earliest: str
    latest: str
    format: str | None = None

    def __post_init__(self) -> None:
        for bound in (self.earliest, self.latest):
            if days_of(bound) is None:
                raise UsageError(f"bounds of dates must be as 2020-12-31, got {validate.option(bound)}.")
        if not self.low < self.high:
            raise UsageError(f"bounds must be [earliest, latest], got [{self.earliest}, {self.latest}].")
        unknown = set(re.findall("%.?", self.format or "%Y")) - _DIRECTIVES
        if unknown:  # names of months and days depend on the language of the machine
            allowed = ", ".join(sorted(_DIRECTIVES))
            raise UsageError(f"format may have {allowed}, got {validate.option(min(unknown))}.")

    @property
    def low(self) -> float:
        """The earliest date, as a number of days."""
        return days_of(self.earliest) or 0.0

    @property
    def high(self) -> float:
        """The latest date, as a number of days."""
        return days_of(self.latest) or 0.0

    @property
    def width(self) -> int:
        """Number of inputs that the column is encoded as."""
        return 1

    def encode(self, cells: Cells | Texts, missing: Missing) -> NDArray[np.float32]:
        """Scaled dates, shape (rows, 1). A missing cell is 0, one that is no date is NaN."""
        cells = cells_of(cells)
        return _scaled(cells.mapped(self._days), cells.are_missing(missing), self.low, self.high)

    def _days(self, texts: Texts) -> NDArray[np.float64]:
        found = (days_of(text, self.format) for text in texts)
        return np.fromiter((math.nan if days is None else days for days in found), np.float64, len(texts))


def days_of(text: str | None, format: str | None = None) -> float | None:
    """Days from 1970 to a date, or None if the string is no date.

    >>> days_of("1970-01-02T12:00"), days_of("2.1.1970", "%d.%m.%Y"), days_of("today")
    (1.5, 1.0, None)
    """
    if text is None:
        return None
    try:
        when = datetime.strptime(text.strip(), format) if format else datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    zoned = when if when.tzinfo else when.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / _SECONDS_A_DAY


@dataclass(frozen=True)
class Category:
    """A categorical column with a public list of values, encoded one-hot.

    >>> Category(("red", "blue")).encode(["blue", "green", ""], frozenset({""}))
    array([[0., 1.],
           [0., 0.],
           [0., 0.]], dtype=float32)
    """

    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        validate.count(at_most=MOST_CATEGORIES, categories=len(self.categories))
        if len(set(self.categories)) < len(self.categories):
            twice = next(name for name in self.categories if self.categories.count(name) > 1)
            raise UsageError(f"categories must differ, got {twice!r:.80} twice.")

    @property
    def width(self) -> int:
        """Number of inputs that the column is encoded as."""
        return len(self.categories)

    def encode(self, cells: Cells | Texts, missing: Missing) -> NDArray[np.float32]:
        """One-hot rows, shape (rows, categories). Missing cells and values outside the list are rows of zeros."""
        places = self.labels(cells, missing)
        known = np.flatnonzero(places >= 0)
        blocks = np.zeros((len(places), self.width), np.float32)
        blocks[known, places[known]] = 1
        return blocks

    def labels(self, cells: Cells | Texts, missing: Missing) -> NDArray[np.int64]:
        """Positions in the list, shape (rows,). Missing and unknown values are -1, a label that no loss counts."""
        places: dict[str | None, int] = {name: place for place, name in enumerate(self.categories)}

        def in_list(texts: Texts) -> NDArray[np.int64]:
            return np.fromiter(map(places.get, texts, repeat(-1)), np.int64, len(texts))

        return cells_of(cells).mapped(in_list)


Column = NumberColumn | DateColumn | Category


def _check_bounds(low: float, high: float) -> None:
    validate.between(-LARGEST_BOUND, LARGEST_BOUND, lower_bound=low, upper_bound=high)
    if not low < high:
        raise UsageError(
            f"bounds must be [low, high] with low < high, got [{validate.shown(low)}, {validate.shown(high)}]."
        )


def _scaled(
    values: NDArray[np.float64], are_missing: NDArray[np.bool_], low: float, high: float
) -> NDArray[np.float32]:
    """Values clamped to the bounds and scaled from them to [-1, 1], shape (rows, 1). A missing one is in the middle."""
    clamped = np.clip(np.where(are_missing, low / 2 + high / 2, values), low, high)
    return (2 * ((clamped - low) / (high - low)) - 1).astype(np.float32)[:, None]
