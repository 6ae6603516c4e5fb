"""Rows of Parquet and Arrow files that may be larger than memory, read when they are drawn.

Uncompressed Arrow files (IPC, Feather) are mapped into memory, and rows are copied out of them. To read one row of a
Parquet file or of a compressed Arrow file, many have to be unpacked. So its rows are written once, batch by batch, to
an uncompressed Arrow file beside it. That file holds private rows, so only its owner may read it (mode 0600). It is
used again as long as names, sizes and times of its sources are the same.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import DataError, UsageError
from sordino.kernel.lazy_rows import ManyRows
from sordino.kernel.row_structure import as_tensor

PARQUET, ARROW = (".parquet",), (".arrow", ".feather", ".ipc")
_ROWS_AT_A_TIME = 4096
_SOURCES = b"sordino.sources"
_LOGGER = logging.getLogger("sordino")


@dataclass(frozen=True)
class ArrowRows(ManyRows):
    """Rows of uncompressed Arrow files of one schema, as dictionaries of their columns. Made by `open_rows`.

    A number is a number, and a list of numbers a tensor. A row that lacks one of them counts as absent.
    """

    files: tuple[Path, ...]
    columns: tuple[str, ...] | None = None  # None for all

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"the index must be in 0..{len(self) - 1}.")
        [row] = self.__getitems__([index])
        return row

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        wanted = np.asarray(indices, dtype=np.int64)
        batch_of_row = np.searchsorted(self._ends, wanted, side="right")
        order = np.argsort(batch_of_row, kind="stable")
        taken = self._taken(wanted[order], batch_of_row[order])
        columns = [_cells(column) for column in taken.columns]
        rows = [dict(zip(taken.schema.names, cells, strict=True)) for cells in zip(*columns, strict=True)]
        return [rows[place] for place in np.argsort(order)]

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to open the files again: no mapped memory."""
        return {"files": self.files, "columns": self.columns}

    def select_columns(self, names: Sequence[str]) -> ArrowRows:
        """These rows with some of their columns."""
        return ArrowRows(self.files, tuple(names))

    def _taken(self, rows: NDArray[np.int64], batch_of_row: NDArray[np.int64]) -> Any:
        """The rows, which come by rising batch, as one record batch."""
        pa, parts = pyarrow(), []
        for number in np.unique(batch_of_row):
            batch = self._batches[number]
            chosen = batch if self.columns is None else batch.select(list(self.columns))
            before = self._ends[number] - batch.num_rows
            parts.append(chosen.take(pa.array(rows[batch_of_row == number] - before)))
        [taken] = pa.Table.from_batches(parts).combine_chunks().to_batches()
        return taken

    @cached_property
    def _batches(self) -> list[Any]:
        return [batch for path in self.files for batch in mapped_batches(path) if batch.num_rows]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The number of rows up to the end of each batch."""
        return np.cumsum([batch.num_rows for batch in self._batches] or [0])


def arrow_rows(path: Path, files: Sequence[Path], *, cache: Path | None) -> ArrowRows:
    """Rows of `files`, which `path` is or contains. `cache` is the file to write if they have to be unpacked."""
    schemas = [arrow_schema(file) for file in files]
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise DataError(f"{str(file)!r} has other columns than {str(files[0])!r}: all files must have one schema.")
    if all(file.suffix.lower() in ARROW and not _is_compressed(file) for file in files):
        return ArrowRows(tuple(files))
    target = cache or path.resolve().with_name(f"{path.resolve().name}.rows.arrow")
    sources = json.dumps([[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]).encode()
    if not (target.is_file() and (arrow_schema(target).metadata or {}).get(_SOURCES) == sources):
        _write_unpacked(target, files, schemas[0].with_metadata({_SOURCES: sources}))
        _LOGGER.warning("the rows of %r were copied to %r, which only its owner may read.", str(path), str(target))
    return ArrowRows((target,))


def pyarrow() -> Any:
    """The module, or one line that says how to install it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UsageError("reading Parquet and Arrow files needs pyarrow: install sordino[parquet].") from None
    return pyarrow


def mapped_batches(path: Path) -> Iterator[Any]:
    """The record batches of an Arrow file or stream. They are views of the mapped file if it is not compressed."""
    reader = _ipc_reader(path)
    if hasattr(reader, "num_record_batches"):
        yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        yield from reader


def _ipc_reader(path: Path) -> Any:
    pa = pyarrow()
    with readable(path):
        source = pa.memory_map(str(path))
        try:
            return pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_stream(source)


def arrow_schema(path: Path) -> Any:
    """The names and types of the columns of a file."""
    if path.suffix.lower() in ARROW:
        return _ipc_reader(path).schema
    with readable(path):
        return pyarrow().parquet.read_schema(str(path)).remove_metadata()


def batches_of(path: Path) -> Iterator[Any]:
    """The record batches of a file of any kind, a few at a time in memory."""
    if path.suffix.lower() in ARROW:
        yield from mapped_batches(path)
    else:
        with pyarrow().parquet.ParquetFile(str(path)) as file:
            yield from file.iter_batches(batch_size=_ROWS_AT_A_TIME)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Refuses a file that is not what its name says, without an error of pyarrow, which may quote it."""
    try:
        yield
    except (OSError, ValueError):  # pyarrow.ArrowInvalid is a ValueError
        raise DataError(f"{str(path)!r} cannot be read as a {path.suffix[1:].capitalize()} file.") from None


def _is_compressed(path: Path) -> bool:
    """Whether reading a batch takes memory, because it has to be unpacked."""
    pa = pyarrow()
    before = pa.total_allocated_bytes()
    first = next(mapped_batches(path), None)
    return first is not None and bool(pa.total_allocated_bytes() > before)


def _write_unpacked(target: Path, files: Sequence[Path], schema: Any) -> None:
    """Writes all rows to one Arrow file, which appears when it is complete."""
    pa = pyarrow()
    try:
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mode 0600
    except OSError as error:
        raise UsageError(f"{str(target)!r} cannot be written ({error.strerror}): say where, by cache=PATH.") from None
    try:
        with os.fdopen(descriptor, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for file in files:
                with readable(file):
                    for batch in batches_of(file):
                        writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _cells(column: Any) -> list[Any]:
    """The values of a column: whole numbers, other numbers, and tensors of lists.

    The type of a value does not depend on the others, so that a row without one does not change other rows.
    """
    together = _as_array(column)
    if together is not None:
        return _cells_of(together)
    one_by_one = (column.slice(place, 1) for place in range(len(column)))
    arrays = ((each, _as_array(each)) for each in one_by_one)
    return [each[0].as_py() if array is None else _cells_of(array)[0] for each, array in arrays]


def _cells_of(array: NDArray[Any]) -> list[Any]:
    if array.ndim > 1:
        return list(as_tensor(array, "a column").unbind())
    return [int(x) for x in array] if array.dtype.kind in "iu" else list(array)


def _as_array(column: Any) -> NDArray[Any] | None:
    """The column as an array, or None if a value is missing, lists differ in length, or values are not numbers."""
    pa = pyarrow()
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if isinstance(column, pa.FixedShapeTensorArray):
        return None if column.null_count else np.array(column.to_numpy_ndarray())
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if column.null_count:
        return None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _as_array(column.flatten())
        lengths = np.unique(pa.compute.list_value_length(column).to_numpy(zero_copy_only=False))
        return None if inner is None or len(lengths) != 1 else inner.reshape(len(column), lengths[0], *inner.shape[1:])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return None
