"""What a column may hold, by public facts, and how cells become numbers.

A cell is text, or None where a file has a null. Nothing here raises for what a cell holds: values are private, and a
message would tell that a record exists. A missing cell is ordinary and says nothing about its column. A number that
cannot be read, or is not finite, becomes NaN, which makes its whole row count as absent (`sordino.kernel.records`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.errors import UsageError

Cells = Sequence[str | None]
Missing = frozenset[str | None]

LARGEST_BOUND = 1e30
MOST_CATEGORIES = 10_000


@dataclass(frozen=True)
class NumberColumn:
    """A number, clamped to public bounds and scaled by them: `low` becomes -1 and `high` becomes 1.

    >>> NumberColumn(0.0, 10.0).encode(["0", "7.5", "12", "", "ten"], frozenset({""}))[:, 0]
    array([-1. ,  0.5,  1. ,  0. ,  nan], dtype=float32)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        validate.between(-LARGEST_BOUND, LARGEST_BOUND, lower_bound=self.low, upper_bound=self.high)
        if not self.low < self.high:
            raise UsageError(
                f"bounds must be [low, high] with low < high, "
                f"got [{validate.shown(self.low)}, {validate.shown(self.high)}]."
            )

    @property
    def width(self) -> int:
        """How many inputs the column becomes."""
        return 1

    def encode(self, cells: Cells, missing: Missing) -> NDArray[np.float32]:
        """Shape (rows, 1). A missing number is the middle of the bounds."""
        values = np.clip(_numbers(cells, missing, self.low / 2 + self.high / 2), self.low, self.high)
        return (2 * ((values - self.low) / (self.high - self.low)) - 1).astype(np.float32)[:, None]

    def labels(self, cells: Cells, missing: Missing) -> NDArray[np.float32]:
        """Shape (rows,), scaled alike. A missing target is NaN: there is nothing to learn from such a row."""
        return np.where(_are_missing(cells, missing), np.float32(math.nan), self.encode(cells, missing)[:, 0])


@dataclass(frozen=True)
class Category:
    """One of a public list of values, as one input each: 1 for the value that a cell holds.

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
        """How many inputs the column becomes."""
        return len(self.categories)

    def encode(self, cells: Cells, missing: Missing) -> NDArray[np.float32]:
        """Shape (rows, categories). A row of zeros stands for a missing cell, and for a value outside the list."""
        places = self.labels(cells, missing)
        known = np.flatnonzero(places >= 0)
        blocks = np.zeros((len(places), self.width), np.float32)
        blocks[known, places[known]] = 1
        return blocks

    def labels(self, cells: Cells, missing: Missing) -> NDArray[np.int64]:
        """Shape (rows,): the position in the list, or -1, which no loss of class labels counts."""
        places: dict[str | None, int] = {name: place for place, name in enumerate(self.categories)}
        return np.fromiter(map(places.get, cells, repeat(-1)), np.int64, len(cells))


Column = NumberColumn | Category


def _numbers(cells: Cells, missing: Missing, instead: float) -> NDArray[np.float64]:
    """As float64: `instead` for a missing cell, NaN for one that is not a finite number."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))  # type: ignore[arg-type]
    except (ValueError, TypeError):  # at least one is no number, so each is tried alone
        values = np.fromiter(map(_number, cells), np.float64, len(cells))
    values[~np.isfinite(values)] = math.nan
    return np.where(_are_missing(cells, missing), instead, values)


def _number(cell: str | None) -> float:
    try:
        return math.nan if cell is None else float(cell)
    except ValueError:
        return math.nan


def _are_missing(cells: Cells, missing: Missing) -> NDArray[np.bool_]:
    if missing.isdisjoint(cells):
        return np.zeros(len(cells), np.bool_)
    return np.fromiter((cell in missing for cell in cells), np.bool_, len(cells))
