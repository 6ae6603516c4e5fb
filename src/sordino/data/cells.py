"""Cells of one column of a table, each a string, or None for a null.

Columns are encoded from three operations, which every kind of cells has: which cells are missing, what numbers they
hold, and what a function of strings says for each. Cells of Arrow have them too (`sordino.data.arrow_cells`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Texts = Sequence[str | None]
Missing = frozenset[str | None]
Kind = TypeVar("Kind", bound=np.generic)


class Cells(Protocol):
    """Cells of one column. Two kinds of cells with the same strings give the same answers."""

    def __len__(self) -> int: ...

    def texts(self) -> Texts:
        """The strings."""
        ...

    def are_missing(self, missing: Missing) -> NDArray[np.bool_]:
        """Whether each cell is one of the markers of missing cells."""
        ...

    def numbers(self) -> NDArray[np.float64]:
        """Values; NaN for a cell that is not a finite number."""
        ...

    def mapped(self, function: Callable[[Texts], NDArray[Kind]]) -> NDArray[Kind]:
        """The values of a function that maps each string by itself."""
        ...


@dataclass(frozen=True)
class TextCells:
    """Cells as Python strings. `decimal` is the mark before decimals.

    >>> TextCells(["1,5", "1.5", "x"], decimal=",").numbers()
    array([1.5, nan, nan])
    """

    strings: Texts
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.strings)

    def texts(self) -> Texts:
        return self.strings

    def are_missing(self, missing: Missing) -> NDArray[np.bool_]:
        if missing.isdisjoint(self.strings):
            return np.zeros(len(self), np.bool_)
        return np.fromiter((cell in missing for cell in self.strings), np.bool_, len(self))

    def numbers(self) -> NDArray[np.float64]:
        return parsed_numbers(self.strings, self.decimal)

    def mapped(self, function: Callable[[Texts], NDArray[Kind]]) -> NDArray[Kind]:
        return function(self.strings)


def cells_of(given: Cells | Texts) -> Cells:
    """Cells of a sequence of strings."""
    return TextCells(given) if isinstance(given, Sequence) else given


_SWAPPED = str.maketrans(",.", ".,")


def parsed_numbers(strings: Texts, decimal: str) -> NDArray[np.float64]:
    """Numbers in strings, as `float` reads them; NaN for other strings, nulls, and values that are not finite."""
    if decimal == ",":
        strings = [None if each is None else each.translate(_SWAPPED) for each in strings]
    try:
        values = np.fromiter(map(float, strings), np.float64, len(strings))  # type: ignore[arg-type]
    except (ValueError, TypeError):  # at least one cell is not a number: parse each by itself
        values = np.fromiter(map(_number, strings), np.float64, len(strings))
    return finite(values)


def finite(values: NDArray[Any]) -> NDArray[np.float64]:
    """Values with NaN in place of infinities."""
    return np.where(np.isfinite(values), values, math.nan)


def _number(cell: str | None) -> float:
    try:
        return math.nan if cell is None else float(cell)
    except ValueError:
        return math.nan
