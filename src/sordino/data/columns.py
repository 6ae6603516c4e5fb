"""Columns of a table: their public bounds or categories, and the encoding of their cells as numbers.

A cell is a string, or None for a null. No value of a cell raises an error: values are private, and a message would
reveal that a record exists. A missing cell is encoded without information. A number that cannot be parsed or is not
finite becomes NaN, and its whole row then counts as absent (`sordino.kernel.records`).
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
    """A numeric column. Values are clamped to public bounds, then scaled so that `low` is -1 and `high` is 1.

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
        """Number of inputs that the column is encoded as."""
        return 1

    def encode(self, cells: Cells, missing: Missing) -> NDArray[np.float32]:
        """Scaled values, shape (rows, 1). A missing cell is 0, the middle of the bounds."""
        values = np.clip(_numbers(cells, missing, self.low / 2 + self.high / 2), self.low, self.high)
        return (2 * ((values - self.low) / (self.high - self.low)) - 1).astype(np.float32)[:, None]

    def labels(self, cells: Cells, missing: Missing) -> NDArray[np.float32]:
        """Scaled targets, shape (rows,). A missing target is NaN, so its row counts as absent."""
        return np.where(_are_missing(cells, missing), np.float32(math.nan), self.encode(cells, missing)[:, 0])


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

    def encode(self, cells: Cells, missing: Missing) -> NDArray[np.float32]:
        """One-hot rows, shape (rows, categories). Missing cells and values outside the list are rows of zeros."""
        places = self.labels(cells, missing)
        known = np.flatnonzero(places >= 0)
        blocks = np.zeros((len(places), self.width), np.float32)
        blocks[known, places[known]] = 1
        return blocks

    def labels(self, cells: Cells, missing: Missing) -> NDArray[np.int64]:
        """Positions in the list, shape (rows,). Missing and unknown values are -1, a label that no loss counts."""
        places: dict[str | None, int] = {name: place for place, name in enumerate(self.categories)}
        return np.fromiter(map(places.get, cells, repeat(-1)), np.int64, len(cells))


Column = NumberColumn | Category


def _numbers(cells: Cells, missing: Missing, instead: float) -> NDArray[np.float64]:
    """Values as float64: `instead` for a missing cell, NaN for a cell that is not a finite number."""
    try:
        values = np.fromiter(map(float, cells), np.float64, len(cells))  # type: ignore[arg-type]
    except (ValueError, TypeError):  # at least one cell is not a number: parse each by itself
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
