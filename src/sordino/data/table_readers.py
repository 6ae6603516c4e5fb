"""Readers of CSV and Parquet files: column names, and cells as strings, some rows at a time.

CSV is read strictly: UTF-8, one header line, the same number of cells in every row. Parquet (needs sordino[parquet])
gives the same strings, so that a table means the same in both formats.

A wrong structure raises a `DataError` with a line number. No message shows the content of a line, not even of the first
one: if the header was forgotten, it is a private record. Names of columns are shown only if the schema has them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import StringIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from sordino._input.files import open_regular
from sordino.data.columns import Cells
from sordino.errors import DataError, UsageError


def refuse_repeated(header: Sequence[str], shown: str) -> None:
    """Refuses two columns of one name."""
    if len(set(header)) < len(header):
        raise DataError(f"{shown}: two columns have the same name, or the names are missing.")


def refuse_absent(wanted: Iterable[str], header: Sequence[str], shown: str) -> None:
    """Refuses a header that lacks a wanted column.

    >>> refuse_absent(["age", "sex"], ["age", "height"], "'people.csv'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'people.csv' has no column 'sex'.
    """
    for name in wanted:
        if name not in header:
            raise DataError(f"{shown} has no column {name!r}.")


LONGEST_LINE = 1 << 20
CSV_ROWS_AT_A_TIME = 1 << 10  # few enough to stay in the processor's cache, which is twice as fast
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Row = list[str]


def csv_pieces(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns, some rows at a time. A file with a header alone yields nothing."""
    with open_regular(path) as file:
        shown = repr(str(path))
        yield from pieces_of(_lines(file, shown), wanted, shown)


def csv_header(path: Path) -> Row:
    """Column names in the first line of a file."""
    with open_regular(path) as file:
        shown = repr(str(path))
        return _header_of_csv(_reader(_lines(file, shown)), shown)


def pieces_of(lines: Iterable[str], wanted: Sequence[str], shown: str) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns of CSV lines. `shown` names their source in messages.

    >>> list(pieces_of(["name,age", "ada,36", "alan,41"], ["age"], "the table"))
    [{'age': ('36', '41')}]
    """
    reader = _reader(lines)
    header = _header_of_csv(reader, shown)
    refuse_absent(wanted, header, shown)
    places = {name: header.index(name) for name in wanted}
    for rows in _pieces(reader, len(header), shown):
        columns = list(zip(*rows, strict=True))
        yield {name: columns[place] for name, place in places.items()}


class _Reader(Protocol):
    """Type of the objects that `csv.reader` returns."""

    line_num: int

    def __iter__(self) -> Iterator[Row]: ...


def _reader(lines: Iterable[str]) -> _Reader:
    return csv.reader(lines, skipinitialspace=True, strict=True)


def _header_of_csv(reader: _Reader, shown: str) -> Row:
    for header in _some(reader, 1, shown):
        refuse_repeated(header, f"{shown}, line {reader.line_num}")
        if header:
            return header
    raise DataError(f"{shown} must begin with a line of column names, got none.")


def _pieces(reader: _Reader, width: int, shown: str) -> Iterator[list[Row]]:
    """Yields rows of `width` cells. Blank lines are allowed only at the end: elsewhere one may be a lost record."""
    line = reader.line_num
    while rows := _some(reader, CSV_ROWS_AT_A_TIME, shown):
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
    while rows := _some(reader, CSV_ROWS_AT_A_TIME, shown):
        yield from rows


def _some(reader: _Reader, number: int, shown: str) -> list[Row]:
    try:
        return list(islice(reader, number))
    except csv.Error:
        raise DataError(f"{shown}, line {reader.line_num}: not CSV, check quotes and line ends.") from None


def _lines(file: BinaryIO, shown: str) -> Iterator[str]:
    """Yields lines, checked and decoded in blocks: line by line this would dominate the time of reading."""
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


PARQUET_ROWS_AT_A_TIME = 1 << 15
MOST_ROWS = 10**8  # a file of a kilobyte can declare any number


def parquet_pieces(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns of a file, some rows at a time. Other columns are not read."""
    shown = repr(str(path))
    with _opened(path) as file:
        header = _header_of_parquet(file, shown)
        refuse_absent(wanted, header, shown)
        if file.metadata.num_rows > MOST_ROWS:
            raise DataError(f"{shown} has more than {MOST_ROWS} rows, which is the most allowed.")
        for batch in file.iter_batches(PARQUET_ROWS_AT_A_TIME, columns=list(wanted)):
            yield {name: _texts(batch.column(name), name, shown) for name in wanted}


def parquet_header(path: Path) -> list[str]:
    """Column names of a file."""
    with _opened(path) as file:
        return _header_of_parquet(file, repr(str(path)))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Opens a Parquet file. Messages of Arrow are not passed on: they may quote the content of a damaged file."""
    arrow = _arrow()
    with open_regular(path) as source:
        try:
            with arrow.parquet.ParquetFile(source) as file:
                yield file
        except (arrow.ArrowException, OSError):
            raise DataError(f"{str(path)!r} is damaged, or not a Parquet file.") from None


def _header_of_parquet(file: Any, shown: str) -> list[str]:
    header: list[str] = file.schema_arrow.names
    refuse_repeated(header, shown)
    return header


def _texts(column: Any, name: str, shown: str) -> Cells:
    arrow = _arrow()
    try:
        texts: Cells = column.cast(arrow.string()).to_pylist()
    except arrow.ArrowException:
        raise DataError(f"{shown}: column {name!r} must hold numbers or strings, got neither.") from None
    return texts


def _arrow() -> Any:
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("reading Parquet needs pyarrow: install sordino[parquet].") from None
    return import_module("pyarrow")


def pieces_in(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns of a CSV or Parquet file, some rows at a time."""
    return parquet_pieces(path, wanted) if _is_parquet(path) else csv_pieces(path, wanted)


def header_of(path: Path) -> list[str]:
    """Column names of a CSV or Parquet file.

    >>> header_of(Path("people.xlsx"))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: a table must be a .csv or a .parquet file, got 'people.xlsx'.
    """
    return parquet_header(path) if _is_parquet(path) else csv_header(path)


def _is_parquet(path: Path) -> bool:
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise UsageError(f"a table must be a .csv or a .parquet file, got {str(path)!r}.")
    return suffix == ".parquet"
