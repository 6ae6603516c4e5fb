"""Cells of Arrow (needs sordino[parquet]), which are converted column by column instead of one by one.

*Guarantee:* the same strings give the same inputs as without Arrow. Arrow converts what it reads as Python does; where
it refuses a cell, all cells of the piece are converted by Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.data.cells import Cells, Kind, Missing, Texts, finite, parsed_numbers
from sordino.errors import UsageError


def arrow() -> Any:
    """The package pyarrow. Raises `UsageError` if it is missing."""
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("reading Parquet needs pyarrow: install sordino[parquet].") from None
    return import_module("pyarrow")


def has_arrow() -> bool:
    """Whether pyarrow can be imported."""
    try:
        import_module("pyarrow.csv")
    except ImportError:
        return False
    return True


def arrow_cells(column: Any, decimal: str) -> Cells:
    """Cells of an Arrow array of numbers or strings. Raises an `ArrowException` for other types."""
    types, kind = arrow().types, column.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return ArrowNumbers(column)
    return ArrowTexts(column.cast(arrow().string()), decimal)


@dataclass(frozen=True)
class ArrowTexts:
    """Cells in an Arrow array of strings."""

    strings: Any = field(repr=False)
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.strings)

    def texts(self) -> Texts:
        found: Texts = self.strings.to_pylist()
        return found

    def are_missing(self, missing: Missing) -> NDArray[np.bool_]:
        markers = arrow().array(list(missing), arrow().string())
        found = import_module("pyarrow.compute").is_in(self.strings, value_set=markers)
        return _as_numpy(found)

    def numbers(self) -> NDArray[np.float64]:
        strings = self.strings
        if self.decimal == ".":
            try:
                return finite(_as_numpy(strings.cast(arrow().float64())))
            except arrow().ArrowInvalid:
                pass  # Python reads more spellings, such as spaces around a number
        return self.mapped(lambda texts: parsed_numbers(texts, self.decimal))

    def mapped(self, function: Callable[[Texts], NDArray[Kind]]) -> NDArray[Kind]:
        different = self.strings.dictionary_encode()
        known = different.dictionary.to_pylist()
        if not different.null_count:
            found: NDArray[Kind] = function(known)[_as_numpy(different.indices)]
        else:
            found = function([*known, None])[_as_numpy(different.indices.fill_null(len(known)))]
        return found


@dataclass(frozen=True)
class ArrowNumbers:
    """Cells in an Arrow array of numbers. A marker of missing cells that is a number stands for all equal numbers."""

    values: Any = field(repr=False)

    def __len__(self) -> int:
        return len(self.values)

    def texts(self) -> Texts:
        return self._as_texts().texts()

    def are_missing(self, missing: Missing) -> NDArray[np.bool_]:
        markers = [marker for text in missing if (marker := _float(text)) is not None]
        are_null, values = _as_numpy(self.values.is_null()), _as_numpy(self.values.cast(arrow().float64(), safe=False))
        found: NDArray[np.bool_] = np.isin(values, markers)
        if any(map(math.isnan, markers)):
            found |= np.isnan(values) & ~are_null
        return found | are_null if None in missing else found

    def numbers(self) -> NDArray[np.float64]:
        return finite(_as_numpy(self.values.cast(arrow().float64(), safe=False)))

    def mapped(self, function: Callable[[Texts], NDArray[Kind]]) -> NDArray[Kind]:
        return self._as_texts().mapped(function)

    def _as_texts(self) -> ArrowTexts:
        return ArrowTexts(self.values.cast(arrow().string()))


def _float(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _as_numpy(column: Any) -> NDArray[Any]:
    """An array of numpy. Nulls of numbers become NaN."""
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found
