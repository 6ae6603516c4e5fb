"""Reader of Parquet files: column names, and the wanted columns some rows at a time (needs sordino[parquet])."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sordino._input.files import open_regular
from sordino.data.arrow_cells import arrow, arrow_cells
from sordino.data.cells import Cells
from sordino.data.table_header import refuse_absent, refuse_repeated
from sordino.errors import DataError

PARQUET_ROWS_AT_A_TIME = 1 << 16
MOST_ROWS = 10**8  # a file of a kilobyte can declare any number


def parquet_pieces(path: Path, wanted: Sequence[str], decimal: str) -> Iterator[dict[str, Cells]]:
    """Yields the wanted columns of a file, some rows at a time. Other columns are not read."""
    shown = repr(str(path))
    with _opened(path) as file:
        header = _header(file, shown)
        refuse_absent(wanted, header, shown)
        if file.metadata.num_rows > MOST_ROWS:
            raise DataError(f"{shown} has more than {MOST_ROWS} rows, which is the most allowed.")
        for batch in file.iter_batches(PARQUET_ROWS_AT_A_TIME, columns=list(wanted), use_threads=False):
            yield {name: _cells(batch.column(name), decimal, name, shown) for name in wanted}


def parquet_header(path: Path) -> list[str]:
    """Column names of a file."""
    with _opened(path) as file:
        return _header(file, repr(str(path)))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Opens a Parquet file. Messages of Arrow are not passed on: they may quote the content of a damaged file."""
    package = arrow()
    with open_regular(path) as source:
        try:
            with package.parquet.ParquetFile(source) as file:
                yield file
        except (package.ArrowException, OSError):
            raise DataError(f"{str(path)!r} is damaged, or not a Parquet file.") from None


def _header(file: Any, shown: str) -> list[str]:
    header: list[str] = file.schema_arrow.names
    refuse_repeated(header, shown)
    return header


def _cells(column: Any, decimal: str, name: str, shown: str) -> Cells:
    try:
        return arrow_cells(column, decimal)
    except arrow().ArrowException:
        raise DataError(f"{shown}: column {name!r} must hold numbers or strings, got neither.") from None
