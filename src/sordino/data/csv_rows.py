"""CSV read strictly and in pieces: UTF-8, one header line, the same number of cells in every row.

What is wrong with the structure is a DataError with a line number. No message shows what a line holds: even the first
line is a private record where a header was forgotten.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Protocol

from sordino.data.columns import Cells
from sordino.data.header import refuse_absent, refuse_repeated
from sordino.errors import DataError
from sordino.files import open_regular

LONGEST_LINE = 1 << 20
ROWS_AT_A_TIME = 1 << 15
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def csv_pieces(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """The wanted columns of a file, some rows at a time. A file with a header alone gives nothing."""
    with open_regular(path) as file:
        shown = repr(str(path))
        yield from pieces_of(_lines(file, shown), wanted, shown)


def csv_header(path: Path) -> list[str]:
    """The names in the first line of a file."""
    with open_regular(path) as file:
        shown = repr(str(path))
        return _header(_reader(_lines(file, shown)), shown)


def pieces_of(lines: Iterable[str], wanted: Sequence[str], shown: str) -> Iterator[dict[str, Cells]]:
    """The wanted columns of lines that may come from anywhere; `shown` names their source in messages.

    >>> list(pieces_of(["name,age", "ada,36", "alan,41"], ["age"], "the table"))
    [{'age': ('36', '41')}]
    """
    reader = _reader(lines)
    header = _header(reader, shown)
    refuse_absent(wanted, header, shown)
    places = {name: header.index(name) for name in wanted}
    rows = _rows(reader, len(header), shown)
    while piece := list(islice(rows, ROWS_AT_A_TIME)):
        columns = list(zip(*piece, strict=True))
        yield {name: columns[place] for name, place in places.items()}


class _Reader(Protocol):
    """What `csv.reader` gives."""

    line_num: int

    def __next__(self) -> list[str]: ...


def _reader(lines: Iterable[str]) -> _Reader:
    return csv.reader(lines, skipinitialspace=True, strict=True)


def _header(reader: _Reader, shown: str) -> list[str]:
    header = _next_row(reader, shown)
    if not header:
        raise DataError(f"{shown} must begin with a line of column names, got none.")
    refuse_repeated(header, f"{shown}, line {reader.line_num}")
    return header


def _rows(reader: _Reader, width: int, shown: str) -> Iterator[list[str]]:
    """Rows of `width` cells. Blank lines may end a file, and stand nowhere else: they might be a missing record."""
    blank: int | None = None
    while (row := _next_row(reader, shown)) is not None:
        if len(row) == width and blank is None:
            yield row
        elif row:
            ragged = f"line {reader.line_num}: the row has {len(row)} cells, the header {width}"
            raise DataError(f"{shown}, {ragged if blank is None else f'line {blank}: the line is blank'}.")
        else:
            blank = blank or reader.line_num


def _next_row(reader: _Reader, shown: str) -> list[str] | None:
    try:
        return next(reader, None)
    except csv.Error:
        raise DataError(f"{shown}, line {reader.line_num}: not CSV, because of a quote or a line end.") from None


def _lines(file: BinaryIO, shown: str) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE or b"\0" in line or _BYTE_ORDER_MARK in line:
            raise DataError(f"{shown}, line {number}: {_what_is_wrong(line)}.")
        try:
            yield line.decode()
        except UnicodeDecodeError:
            raise DataError(f"{shown}, line {number}: the line is not UTF-8.") from None


def _what_is_wrong(line: bytes) -> str:
    if len(line) > LONGEST_LINE:
        return f"the line is longer than {LONGEST_LINE} bytes, which is the most allowed"
    if b"\0" in line:
        return "the line has a NUL byte: save the file as UTF-8 text"
    return "the line has a byte-order mark: save the file as UTF-8 without one"
