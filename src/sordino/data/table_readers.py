"""Readers of tables: column names, and the cells of the wanted columns, some rows at a time.

CSV is read strictly: UTF-8, one header line, the same number of cells in every row. Where pyarrow is installed, blocks
of plain lines are read by it, and give the same cells. Parquet is read by `sordino.data.parquet_reader`.

A wrong structure raises a `DataError` with a line number. No message shows the content of a line, not even of the first
one: if the header was forgotten, it is a private record. Names of columns are shown only if the schema has them.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from sordino._input.files import open_regular
from sordino.data.arrow_cells import ArrowTexts, arrow, has_arrow
from sordino.data.cells import Cells, TextCells
from sordino.data.dialect import DETECTED, Dialect
from sordino.data.parquet_reader import parquet_header, parquet_pieces
from sordino.data.table_header import refuse_absent, refuse_repeated
from sordino.errors import DataError, UsageError

TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


def is_table(path: Path) -> bool:
    """Whether the name of a file ends like that of a table.

    >>> is_table(Path("people.CSV.gz")), is_table(Path("people.npz"))
    (True, False)
    """
    return path.name.lower().endswith(TABLES)


def pieces_in(path: Path, wanted: Sequence[str], dialect: Dialect = DETECTED) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns of a table, some rows at a time. A file without rows yields nothing."""
    if _is_parquet(path):
        return parquet_pieces(path, wanted, dialect.decimal)
    return _csv_pieces(path, wanted, _said_by_name(path, dialect))


def header_of(path: Path, dialect: Dialect = DETECTED) -> list[str]:
    """Column names of a table.

    >>> header_of(Path("people.xlsx"))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: a table must be a file of .csv, .tsv, .csv.gz, .tsv.gz, .parquet, got 'people.xlsx'.
    """
    if _is_parquet(path):
        return parquet_header(path)
    with _opened(path) as file:
        return _CsvRows(_blocks(file, repr(str(path))), (), _said_by_name(path, dialect), repr(str(path))).header


def _is_parquet(path: Path) -> bool:
    if not is_table(path):
        raise UsageError(f"a table must be a file of {', '.join(TABLES)}, got {str(path)!r}.")
    return path.suffix.lower() == ".parquet"


def _said_by_name(path: Path, dialect: Dialect) -> Dialect:
    """The dialect, with tabs as delimiters of a .tsv file."""
    is_tabbed = path.name.lower().endswith((".tsv", ".tsv.gz"))
    return replace(dialect, delimiter=dialect.delimiter or "\t") if is_tabbed else dialect


LONGEST_LINE = 1 << 20
CSV_ROWS_AT_A_TIME = 1 << 10  # few enough to stay in the processor's cache, which is twice as fast
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Row = list[str]


def _csv_pieces(path: Path, wanted: Sequence[str], dialect: Dialect) -> Iterator[dict[str, Cells]]:
    with _opened(path) as file:
        shown = repr(str(path))
        yield from _CsvRows(_blocks(file, shown), wanted, dialect, shown).pieces()


def pieces_of(lines: Iterable[str], wanted: Sequence[str], shown: str) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns of CSV lines. `shown` names their source in messages.

    >>> list(pieces_of(["name,age", "ada,36", "alan,41"], ["age"], "the table"))
    [{'age': TextCells(strings=('36', '41'), decimal='.')}]
    """
    blocks = ("".join(line + "\n" for line in some).encode() for some in _batches(lines, CSV_ROWS_AT_A_TIME))
    return _CsvRows(blocks, wanted, replace(DETECTED, delimiter=","), shown).by_python()


def _batches(lines: Iterable[str], number: int) -> Iterator[list[str]]:
    rest = iter(lines)
    while some := list(islice(rest, number)):
        yield some


class _CsvRows:
    """Rows of CSV below the header, from blocks of whole lines.

    A block of plain lines is read by Arrow. From the first block that is not plain on, `csv` reads all.
    """

    def __init__(self, blocks: Iterable[bytes], wanted: Sequence[str], dialect: Dialect, shown: str) -> None:
        self._lines, self._shown = _Lines(blocks), shown
        self.dialect = dialect.of_header(self._lines.header().rstrip("\r\n"), wanted)
        self._reader = self.dialect.reader(self._lines)
        self.header = self._read_header()
        refuse_absent(wanted, self.header, shown)
        self._places = {name: self.header.index(name) for name in wanted}

    def pieces(self) -> Iterator[dict[str, Cells]]:
        """Yields the wanted columns, some rows at a time."""
        if has_arrow():
            while block := self._lines.take():
                piece = self._by_arrow(block)
                if piece is None:
                    self._lines.put_back(block)
                    break
                yield piece
        yield from self.by_python()

    def by_python(self) -> Iterator[dict[str, Cells]]:
        """Yields the wanted columns as strings of Python, some rows at a time."""
        for rows in self._rows():
            columns = list(zip(*rows, strict=True))
            yield {name: TextCells(columns[place], self.dialect.decimal) for name, place in self._places.items()}

    def _by_arrow(self, block: bytes) -> dict[str, Cells] | None:
        """The wanted columns of a block, or None if Arrow might read its lines in another way than `csv`."""
        dialect = self.dialect
        if not _is_plain(block, dialect):
            return None
        reader, names = import_module("pyarrow.csv"), [str(place) for place in range(len(self.header))]
        string, places = arrow().string(), [str(place) for place in self._places.values()]
        try:
            found = reader.read_csv(
                arrow().BufferReader(block),
                reader.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
                reader.ParseOptions(
                    delimiter=dialect.delimiter, quote_char=dialect.quote, double_quote=False, ignore_empty_lines=False
                ),
                reader.ConvertOptions(
                    column_types=dict.fromkeys(places, string), include_columns=places, strings_can_be_null=False
                ),
            )
        except arrow().ArrowInvalid:  # lines of another length: `csv` finds which
            return None
        if b" " in block:  # as `skipinitialspace` does
            trim = import_module("pyarrow.compute").utf8_ltrim
            columns = {name: trim(found.column(str(place)), " ") for name, place in self._places.items()}
        else:
            columns = {name: found.column(str(place)) for name, place in self._places.items()}
        return {name: ArrowTexts(column.combine_chunks(), dialect.decimal) for name, column in columns.items()}

    @property
    def _line(self) -> int:
        """Number of the last line that was read."""
        return self._lines.taken + self._reader.line_num

    def _read_header(self) -> Row:
        for header in self._some(1):
            refuse_repeated(header, f"{self._shown}, line {self._line}")
            if header:
                return header
        raise DataError(f"{self._shown} must begin with a line of column names, got none.")

    def _rows(self) -> Iterator[list[Row]]:
        """Yields rows as long as the header. Blank lines may only be at the end: elsewhere one may be a lost record."""
        line, width = self._line, len(self.header)
        while rows := self._some(CSV_ROWS_AT_A_TIME):
            if any(len(row) != width for row in rows):
                place = next(place for place, row in enumerate(rows) if len(row) != width)
                if any(chain(rows[place:], self._others())):
                    line += sum(1 + "".join(row).count("\n") for row in rows[: place + 1])
                    found = f"the row has {len(rows[place])} cells, the header {width}"
                    raise DataError(f"{self._shown}, line {line}: {found}.")
                rows = rows[:place]
            line = self._line
            if rows:
                yield rows

    def _others(self) -> Iterator[Row]:
        while rows := self._some(CSV_ROWS_AT_A_TIME):
            yield from rows

    def _some(self, number: int) -> list[Row]:
        try:
            return list(islice(self._reader, number))
        except csv.Error:
            delimiter = repr(self.dialect.delimiter)
            raise DataError(
                f"{self._shown}, line {self._line}: not CSV with the delimiter {delimiter}, check quotes and line ends."
            ) from None


class _Lines:
    """Lines for `csv.reader`, from blocks of whole lines. `take` takes the rest of a block at once."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._open, self.taken = iter(blocks), StringIO(), 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while not (line := self._open.readline()):
            self._open = _text(next(self._blocks))
        return line

    def header(self) -> str:
        """The line of column names, or several if a name in quotes has line breaks. They stay to be read."""
        self._open = _text(next(self._blocks, b""))
        header = self._open.readline()
        while header.count('"') % 2 and (line := self._open.readline()):
            header += line
        self._open.seek(0)
        return header

    def take(self) -> bytes:
        """The rest of the open block, or all of the next one; empty at the end. `taken` counts its lines."""
        block = self._open.read().encode() or next(self._blocks, b"")
        self._open = StringIO()
        self.taken += block.count(b"\n")
        return block

    def put_back(self, block: bytes) -> None:
        """Puts a block back that was taken."""
        self._open = _text(block)
        self.taken -= block.count(b"\n")


def _text(block: bytes) -> StringIO:
    return StringIO(block.decode(), newline="\n")


def _is_plain(block: bytes, dialect: Dialect) -> bool:
    """Whether all of these hold, so that every reader of CSV finds the same cells in the lines of a block.

    No blank lines, no carriage return but before a newline, no escapes; a quote only at both ends of a cell, and no
    space after the first one.
    """
    delimiter, quote = (dialect.delimiter or "").encode(), (dialect.quote or "").encode()
    if dialect.escape is not None or len(delimiter) != 1 or len(quote) != 1 or delimiter == b" ":
        return False
    if b"\r" in block:
        if block.count(b"\r") != block.count(b"\r\n"):
            return False
        block = block.replace(b"\r\n", b"\n")
    if block.startswith(b"\n") or b"\n\n" in block:
        return False
    if quote not in block:
        return True
    characters = np.frombuffer(b"\n" + block + b"\n", np.uint8)
    quotes, ends = np.flatnonzero(characters == quote[0]), np.flatnonzero(characters == ord("\n"))
    opening, closing = quotes[0::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    around = np.array([delimiter[0], ord("\n")], np.uint8)
    within_lines = np.array_equal(np.searchsorted(ends, opening), np.searchsorted(ends, closing))
    at_ends = np.isin(characters[opening - 1], around).all() and np.isin(characters[closing + 1], around).all()
    return within_lines and bool(at_ends) and not (characters[opening + 1] == ord(" ")).any()


def _blocks(file: BinaryIO, shown: str) -> Iterator[bytes]:
    """Yields blocks of whole lines, checked: line by line this would dominate the time of reading."""
    number, rest, is_first = 0, b"", True
    while block := _read(file, shown):
        if is_first:
            block, is_first = block.removeprefix(_BYTE_ORDER_MARK), False
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield _checked(whole + newline, number, shown)
        number += whole.count(b"\n") + len(newline)
        if len(rest) > LONGEST_LINE:
            raise DataError(f"{shown}, line {number + 1}: the line is longer than {LONGEST_LINE} bytes.")
    if rest:
        yield _checked(rest, number, shown)


def _checked(block: bytes, number: int, shown: str) -> bytes:
    def wrong(offset: int, what: str) -> DataError:
        line = number + 1 + block.count(b"\n", 0, offset)
        return DataError(f"{shown}, line {line}: {what}.")

    if b"\0" in block:
        raise wrong(block.index(b"\0"), "a NUL byte: save the file as UTF-8 text")
    if _BYTE_ORDER_MARK in block:
        raise wrong(block.index(_BYTE_ORDER_MARK), "a byte-order mark, which only the start of a file may have")
    try:
        block.decode()
    except UnicodeDecodeError as error:
        raise wrong(error.start, "not UTF-8") from None
    return block


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Opens a file, unpacked if its name ends in .gz."""
    with open_regular(path) as file:
        yield cast(BinaryIO, gzip.GzipFile(fileobj=file)) if path.suffix.lower() == ".gz" else file


def _read(file: Any, shown: str) -> bytes:
    try:
        block: bytes = file.read(LONGEST_LINE)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{shown} is a damaged or truncated gzip file, or none.") from None
    return block
