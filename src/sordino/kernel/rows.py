"""Rows of a dataset that are taken by index, and rows in memory or in memory-mapped files.

A row is a tuple (inputs..., target), or a dictionary with named inputs and a target. Rows that are read when they are
drawn are in `lazy_rows`.

A memory map is never copied: rows are copied out of it when they are drawn, and converted then.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.errors import DataError
from sordino.kernel.randomness import Stream
from sordino.kernel.row_structure import Keys, as_tensor, check_numbers, part_names, refuse_boolean_target

_ROWS_TO_COMPARE = 256
_LARGEST_HASHED = 1 << 30  # bytes; of a larger memory map, some rows are hashed
_HASHED_AT_A_TIME = 1 << 24  # bytes
ALL_ROWS = "all rows"
SOME_ROWS = f"at least {_ROWS_TO_COMPARE} rows, evenly spaced, or all if there are fewer"

Column: TypeAlias = Tensor | NDArray[Any]


@dataclass(frozen=True)
class ReadAt:
    """Address of the randomness of rows: what a row draws while it is read is a function of (stream, step, row).

    So a step that is repeated reads equal rows, even if the dataset changes them at random. The seeds are independent
    of who joined the step: they come from a stream of their own.
    """

    stream: Stream
    step: int

    def seed(self, row: int) -> int:
        """The seed of a row: 64 bits of a keyed hash, so that rows and steps draw independently of each other."""
        address = self.step.to_bytes(8, "big") + row.to_bytes(8, "big")
        return int.from_bytes(hashlib.blake2b(address, key=self.stream.secret, digest_size=8).digest())


class Rows(Protocol):
    """Rows of (inputs..., target) that can be taken by index."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs if rows are dictionaries, otherwise empty."""
        ...

    @property
    def target_name(self) -> str:
        """The key of the target if rows are dictionaries, otherwise empty."""
        ...

    @property
    def hashed(self) -> str:
        """Which rows `hash_into` covers, in words that tell nothing about the data."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """The rows `indices`, stacked in new memory, and a mask of those that can be used.

        A row that cannot be used has zeros. Without `at`, rows that draw do so from the global generators.
        """
        ...

    def empty(self) -> tuple[Tensor, ...]:
        """Tensors with no rows, in the public shapes and dtypes."""
        ...

    def hash_into(self, digest: hashlib.blake2b, at: ReadAt) -> None:
        """Adds rows to a fingerprint of the data: all of them, or some if rows are read when drawn, or are too many."""
        ...

    def are_repeatable(self, at: ReadAt) -> bool:
        """Whether rows that are read twice with equal `at` are equal, bit for bit."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Columns whose rows need not be read: tensors, and arrays that are mapped from a file.

    An array is converted to a tensor row by row, when rows are drawn.
    """

    columns: tuple[Column, ...]
    keys: Keys | None = None

    @classmethod
    def of(cls, parts: Sequence[object], keys: Keys | None = None) -> InMemory:
        """Rows of tensors or arrays of one length."""
        names = part_names(len(parts), keys)
        columns = tuple(_column(part, name) for part, name in zip(parts, names, strict=True))
        for column, name in zip(columns, names, strict=True):
            if column.ndim == 0:
                raise DataError(f"{name} must have one entry per row along the first axis, got a scalar.")
        if len({len(x) for x in columns}) > 1:
            lengths = ", ".join(f"{name} {len(x)}" for x, name in zip(columns, names, strict=True))
            raise DataError(f"parts of the data differ in length: {lengths}.")
        rows = cls(columns, keys)
        refuse_boolean_target(rows.empty()[-1])
        return rows

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.keys is None else self.keys.inputs

    @property
    def target_name(self) -> str:
        return "" if self.keys is None else self.keys.target

    @property
    def hashed(self) -> str:
        if not any(map(_is_sampled, self.columns)):
            return ALL_ROWS
        return f"{SOME_ROWS}, of memory maps above {_LARGEST_HASHED >> 30} GiB, and all other values"

    def __len__(self) -> int:
        return len(self.columns[0])

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        return tuple(_drawn(x, indices) for x in self.columns), torch.ones(len(indices), dtype=torch.bool)

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(_part(x, slice(0, 0)) for x in self.columns)

    def hash_into(self, digest: hashlib.blake2b, at: ReadAt) -> None:
        for column in self.columns:
            if _is_sampled(column):
                hash_tensor(digest, _drawn(column, torch.tensor(evenly_spaced(len(self)))))
            else:
                _hash_column(digest, column)

    def are_repeatable(self, at: ReadAt) -> bool:
        return True


def evenly_spaced(length: int) -> range:
    """The rows of a dataset that are compared instead of all."""
    return range(0, length, max(1, length // _ROWS_TO_COMPARE))


def hash_tensor(digest: hashlib.blake2b, tensor: Tensor) -> None:
    """Adds a tensor to a digest: dtype, shape and bytes."""
    _hash_header(digest, tensor.dtype, tuple(tensor.shape))
    _hash_bytes(digest, tensor)


def _hash_column(digest: hashlib.blake2b, column: Column) -> None:
    """Adds what `hash_tensor` would add, and holds a few rows of a memory map at a time."""
    if isinstance(column, Tensor):
        return hash_tensor(digest, column)
    _hash_header(digest, _part(column, slice(0, 0)).dtype, column.shape)
    at_a_time = max(1, _HASHED_AT_A_TIME * len(column) // max(1, column.nbytes))
    for start in range(0, len(column), at_a_time):
        _hash_bytes(digest, _part(column, slice(start, start + at_a_time)))


def _hash_header(digest: hashlib.blake2b, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    digest.update(repr((dtype, shape)).encode())


def _hash_bytes(digest: hashlib.blake2b, tensor: Tensor) -> None:
    digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _column(part: object, name: str) -> Column:
    """A tensor, or the array itself if it is mapped from a file, or of integers that torch cannot take by index."""
    if isinstance(part, Tensor) and _is_mapped(part) and part.dtype in (torch.uint16, torch.uint32, torch.uint64):
        part = part.detach().numpy()
    if isinstance(part, np.ndarray) and _is_mapped(part):
        check_numbers(part, name)
        return np.asarray(part)  # the same memory, without the class `memmap`
    return as_tensor(part, name)


def _drawn(column: Column, indices: Tensor) -> Tensor:
    if isinstance(column, Tensor):
        return column.index_select(0, indices.to(column.device))
    return as_tensor(column[indices.cpu().numpy()], "data")


def _part(column: Column, rows: slice) -> Tensor:
    return column[rows] if isinstance(column, Tensor) else as_tensor(column[rows], "data")


def _is_sampled(column: Column) -> bool:
    return column.nbytes > _LARGEST_HASHED and _is_mapped(column)


def _is_mapped(part: Column) -> bool:
    """Whether the memory of `part` is a file that is mapped: `np.memmap` and its views, `torch.from_file`."""
    if isinstance(part, Tensor):
        return (
            part.layout == torch.strided and part.device.type == "cpu" and part.untyped_storage().filename is not None
        )
    return any(isinstance(owner, (np.memmap, mmap.mmap)) for owner in _owners_of(part))


def _owners_of(array: NDArray[Any]) -> Iterator[object]:
    """An array, and all objects whose memory it is a view of."""
    owner: object = array
    while owner is not None:
        yield owner
        owner = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
