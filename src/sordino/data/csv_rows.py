"""CSV read strictly and in pieces: UTF-8, one header line, the same number of cells in every row.

What is wrong with the structure is a DataError with a line number. No message shows what a line holds: even the first
line is a private record where a header was forgotten.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, Protocol

from sordino._input.files import open_regular
from sordino.data.columns import Cells
from sordino.data.header import refuse_absent, refuse_repeated
from sordino.errors import DataError

LONGEST_LINE = 1 << 20
ROWS_AT_A_TIME = 1 << 10  # their cells stay in the cache, which is worth a factor of two
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Row = list[str]


def csv_pieces(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """The wanted columns of a file, some rows at a time. A file with a header alone gives nothing."""
    with open_regular(path) as file:
        shown = repr(str(path))
        yield from pieces_of(_lines(file, shown), wanted, shown)


def csv_header(path: Path) -> Row:
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
    for rows in _pieces(reader, len(header), shown):
        columns = list(zip(*rows, strict=True))
        yield {name: columns[place] for name, place in places.items()}


class _Reader(Protocol):
    """What `csv.reader` gives."""

    line_num: int

    def __iter__(self) -> Iterator[Row]: ...


def _reader(lines: Iterable[str]) -> _Reader:
    return csv.reader(lines, skipinitialspace=True, strict=True)


def _header(reader: _Reader, shown: str) -> Row:
    for header in _some(reader, 1, shown):
        refuse_repeated(header, f"{shown}, line {reader.line_num}")
        if header:
            return header
    raise DataError(f"{shown} must begin with a line of column names, got none.")


def _pieces(reader: _Reader, width: int, shown: str) -> Iterator[list[Row]]:
    """Rows of `width` cells. Blank lines may end a file, and stand nowhere else: they might be a missing record."""
    line = reader.line_num
    while rows := _some(reader, ROWS_AT_A_TIME, shown):
        if any(len(row) != width for row in rows):
            place = next(place for place, row in enumerate(rows) if len(row) != width)
            if any(chain(rows[place:], _others(reader, shown))):
                line += sum(1 + "".join(row).count("\n") for row in rows[: place + 1])
                raise DataError(f"{shown}, line {line}: the row has {len(rows[place])} cells, the header {width}.")
            rows = rows[:place]
        line = reader.line_num
        if rows:
            yield rows


def _others(reader: _Reader, shown: str) -> Iterator[Row]:
    while rows := _some(reader, ROWS_AT_A_TIME, shown):
        yield from rows


def _some(reader: _Reader, number: int, shown: str) -> list[Row]:
    try:
        return list(islice(reader, number))
    except csv.Error:
        raise DataError(f"{shown}, line {reader.line_num}: not CSV, because of a quote or a line end.") from None


def _lines(file: BinaryIO, shown: str) -> Iterator[str]:
    """Checked and decoded by the block: line by line it would take longer than all the rest."""
    number, rest = 0, b""
    while block := file.read(LONGEST_LINE):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        yield from _decoded(whole + newline, number, shown)
        number += whole.count(b"\n") + len(newline)
        if len(rest) > LONGEST_LINE:
            raise DataError(f"{shown}, line {number + 1}: the line is longer than {LONGEST_LINE} bytes.")
    yield from _decoded(rest, number, shown)


def _decoded(block: bytes, number: int, shown: str) -> Iterator[str]:
    def wrong(offset: int, what: str) -> DataError:
        line = number + 1 + block.count(b"\n", 0, offset)
        return DataError(f"{shown}, line {line}: {what}.")

    if b"\0" in block:
        raise wrong(block.index(b"\0"), "a NUL byte: save the file as UTF-8 text")
    if _BYTE_ORDER_MARK in block:
        raise wrong(block.index(_BYTE_ORDER_MARK), "a byte-order mark: save the file as UTF-8 without one")
    try:
        text = block.decode()
    except UnicodeDecodeError as error:
        raise wrong(error.start, "not UTF-8") from None
    return StringIO(text, newline="\n")
