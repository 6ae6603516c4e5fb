"""Parquet, in the same pieces of text as CSV, so that a table means the same in both. Needs sordino[parquet]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from sordino._input.files import open_regular
from sordino.data.columns import Cells
from sordino.data.header import refuse_absent, refuse_repeated
from sordino.errors import DataError, UsageError

ROWS_AT_A_TIME = 1 << 15
MOST_ROWS = 10**8  # a file of a kilobyte can promise any number


def parquet_pieces(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """The wanted columns of a file, some rows at a time. The others are not read."""
    shown = repr(str(path))
    with _opened(path) as file:
        header = _header(file, shown)
        refuse_absent(wanted, header, shown)
        if file.metadata.num_rows > MOST_ROWS:
            raise DataError(f"{shown} has more than {MOST_ROWS} rows, which is the most allowed.")
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=list(wanted)):
            yield {name: _texts(batch.column(name), name, shown) for name in wanted}


def parquet_header(path: Path) -> list[str]:
    """The names of the columns of a file."""
    with _opened(path) as file:
        return _header(file, repr(str(path)))


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Whatever Arrow says about a damaged file might quote it, so it is not repeated."""
    arrow = _arrow()
    with open_regular(path) as source:
        try:
            with arrow.parquet.ParquetFile(source) as file:
                yield file
        except (arrow.ArrowException, OSError):
            raise DataError(f"{str(path)!r} is not Parquet, or damaged.") from None


def _header(file: Any, shown: str) -> list[str]:
    header: list[str] = file.schema_arrow.names
    refuse_repeated(header, shown)
    return header


def _texts(column: Any, name: str, shown: str) -> Cells:
    arrow = _arrow()
    try:
        texts: Cells = column.cast(arrow.string()).to_pylist()
    except arrow.ArrowException:
        raise DataError(f"{shown}: column {name!r} must hold numbers or text, got neither.") from None
    return texts


def _arrow() -> Any:
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("reading Parquet needs pyarrow: install sordino[parquet].") from None
    return import_module("pyarrow")
