"""A table in a file, whatever its format: the names of its columns, and their cells piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from sordino.data.columns import Cells
from sordino.data.csv_rows import csv_header, csv_pieces
from sordino.data.parquet_rows import parquet_header, parquet_pieces
from sordino.errors import UsageError


def pieces_in(path: Path, wanted: Sequence[str]) -> Iterator[dict[str, Cells]]:
    """The wanted columns, some rows at a time."""
    return parquet_pieces(path, wanted) if _is_parquet(path) else csv_pieces(path, wanted)


def header_of(path: Path) -> list[str]:
    """The names of the columns.

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
