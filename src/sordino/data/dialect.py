"""`Dialect`: how a CSV file separates and quotes its cells and writes its numbers.

*Guarantee:* a dialect is said in a schema or detected from the line of column names, which is public. No private row
decides how the others are read.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from sordino._input import validate
from sordino.errors import UsageError

_DELIMITERS = (",", ";", "\t", "|")
_QUOTES = ('"', "'")
_DECIMAL_MARKS = (".", ",")


class Reader(Protocol):
    """Type of the objects that `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...


@dataclass(frozen=True)
class Dialect:
    """Delimiter and quote (None: detected), the character that escapes a quote, and the mark before decimals.

    Without `escape`, a quote inside a quoted cell is doubled.

    >>> Dialect().of_header("name;age")
    Dialect(delimiter=';', quote='"', escape=None, decimal='.')
    """

    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    decimal: str = "."

    def __post_init__(self) -> None:
        chosen = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        given = {name: value for name, value in chosen.items() if value is not None}
        for name, value in given.items():
            if len(value) != 1 or value in "\r\n\0":
                raise UsageError(f"{name} must be one character, got {validate.option(value)}.")
        if len(set(given.values())) < len(given):
            raise UsageError(f"{', '.join(given)} must be different characters.")
        if self.decimal not in _DECIMAL_MARKS:
            raise UsageError(f"decimal must be '.' or ',', got {validate.option(self.decimal)}.")

    def of_header(self, line: str, wanted: Collection[str] = ()) -> Dialect:
        """A copy with delimiter and quote, detected from the line of column names if they are not said.

        The delimiter is the one with which most of the `wanted` names are there, then the one with most columns.

        >>> Dialect().of_header("'last, first'|'age'").quote
        "'"
        """
        candidates = [
            replace(self, delimiter=delimiter, quote=quote)
            for quote in ([self.quote] if self.quote else [each for each in _QUOTES if each != self.delimiter])
            for delimiter in ([self.delimiter] if self.delimiter else _DELIMITERS)
            if len({delimiter, quote, self.escape}) == 3
        ]

        def fit(dialect: Dialect) -> tuple[int, int, int]:
            names = dialect.split(line)
            still_quoted = sum(name.startswith(_QUOTES) or name.endswith(_QUOTES) for name in names)
            return len(set(wanted).intersection(names)), -still_quoted, len(names)

        return max(candidates, key=fit)

    def split(self, line: str) -> list[str]:
        """Cells of one line. A line that is not valid in this dialect has none."""
        try:
            return next(iter(self.reader([line])), [])
        except csv.Error:
            return []

    def reader(self, lines: Iterable[str]) -> Reader:
        """The `csv.reader` of lines."""
        return csv.reader(
            lines,
            delimiter=self.delimiter or ",",
            quotechar=self.quote or '"',
            escapechar=self.escape,
            doublequote=self.escape is None,
            skipinitialspace=True,
            strict=True,
        )


DETECTED = Dialect()
