"""Rows of a map-style dataset, which are read when they are drawn, with one public structure for all rows.

A row that cannot be used (it cannot be read, or has another shape or type) may affect its owner only: it counts as
absent, without a message. So the structure that all rows must have may not depend on a single row. A few evenly spaced
rows are read at the start, and the structure is the one that more than half of them have; if there is none, the dataset
is refused, without quoting a row. One row changes this only if it turns an exact half into a majority.

A collate function gets one row at a time, so it cannot mix rows. With buckets, rows are padded after that.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sordino.errors import DataError, UsageError
from sordino.kernel.buckets import Buckets
from sordino.kernel.row_structure import (
    Keys,
    is_integer_scalar,
    most_of,
    parts_of_row,
    refuse_boolean_target,
    row_tensors,
    structure_of,
    structure_of_most,
)
from sordino.kernel.rows import SOME_ROWS, ReadAt, evenly_spaced, hash_tensor

_ROWS_TO_INSPECT = 9  # the structure is that of most of these

Collate: TypeAlias = Callable[[list[Any]], Any]


class IndexedRows(Protocol):
    """A map-style dataset: rows by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ManyRows(Dataset[Any]):
    """Base of map-style datasets that read many rows at once. A row is a function of the data and its own index.

    So rows draw no randomness, and none depends on which others are read with it.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: list[int]) -> Sequence[Any]:
        """The rows `indices`. If one of them cannot be read, this may raise: rows are then read one by one."""
        raise NotImplementedError

    def select_columns(self, names: Sequence[str]) -> ManyRows:
        """These rows with the columns `names` only, if rows are dictionaries."""
        raise NotImplementedError


@dataclass(frozen=True)
class Preparation:
    """Preparation of a row after it is read: `collate` gets it as a list of one, `buckets` pad its sequences."""

    collate: Collate | None = None
    buckets: Buckets | None = None

    def __call__(self, row: Any) -> Any:
        """The row as it is used."""
        if self.collate is not None:
            row = _without_batch(self.collate([row]))
        if self.buckets is None:
            return row
        try:
            return self.buckets.padded_row(row)
        except DataError as error:  # it names structure only
            raise _UnfitRow(str(error)) from None


@dataclass(frozen=True)
class Lazy:
    """A map-style dataset, whose rows are read when they are drawn. `structure` is a row of zeros.

    `keys` are those of rows that are dictionaries. `prepare` is what is done with a row after it is read.
    """

    dataset: IndexedRows
    structure: tuple[Tensor, ...]
    length: int
    keys: Keys | None
    prepare: Preparation

    @classmethod
    def of(
        cls,
        dataset: IndexedRows,
        *,
        inputs: Sequence[str] | None = None,
        target: str | None = None,
        prepare: Preparation | None = None,
    ) -> Lazy:
        """Rows of `dataset`, with the structure that most of them have."""
        prepare = prepare or Preparation()
        if not hasattr(dataset, "__len__"):
            raise DataError(f"the dataset must know its length, {type(dataset).__name__} has no __len__.")
        length = len(dataset)
        if length == 0:
            raise DataError("the dataset is empty.")
        inspected = range(0, length, -(-length // _ROWS_TO_INSPECT))
        rows, reasons = _inspected_rows(dataset, inspected, prepare)
        keys = _keys_of_most(rows, inputs, target, among=len(inspected))
        if keys is None:
            refuse_names_of_tuples(inputs, target)
        structure = structure_of_most(rows, reasons, keys, among=len(inspected))
        refuse_boolean_target(structure[-1])
        used = _only_used(dataset, keys) if prepare == Preparation() else dataset
        return cls(used, structure, length, keys, prepare)

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.keys is None else self.keys.inputs

    @property
    def target_name(self) -> str:
        return "" if self.keys is None else self.keys.target

    @property
    def hashed(self) -> str:
        return SOME_ROWS

    def __len__(self) -> int:
        return self.length

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        if len(indices) == 0:  # there is nothing to stack
            return self.empty(), torch.ones(0, dtype=torch.bool)
        read = self._read(indices.tolist(), at)
        usable = torch.tensor([row is not None for row in read])
        rows = [self._row_of_zeros if row is None else row for row in read]
        if all(map(self._is_ready, rows)):  # the usual case: stacking columns is faster than converting each cell
            *inputs, labels = zip(*rows, strict=True)
            return (*(torch.stack(x).detach() for x in inputs), torch.tensor(labels)), usable
        columns = zip(*(row_tensors(row, self.keys) for row in rows), strict=True)
        return tuple(torch.stack(column) for column in columns), usable

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x.new_empty((0, *x.shape)) for x in self.structure)

    def hash_into(self, digest: hashlib.blake2b, at: ReadAt) -> None:
        for index in evenly_spaced(self.length):
            self._hash_row(digest, index, at)

    def are_repeatable(self, at: ReadAt) -> bool:
        """Reads forwards and then backwards, which also finds rows that depend on the row that was read before."""
        sampled = list(evenly_spaced(self.length))
        forwards = {index: self._digest(index, at) for index in sampled}
        return all(self._digest(index, at) == forwards[index] for index in reversed(sampled))

    @property
    def _row_of_zeros(self) -> tuple[Any, ...]:
        """Placeholder for a row that cannot be used: zeros, and a label of the type that most rows have."""
        *inputs, target = self.structure
        return *inputs, 0 if is_integer_scalar(target) else target

    def _digest(self, index: int, at: ReadAt) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        self._hash_row(digest, index, at)
        return digest.digest()

    def _hash_row(self, digest: hashlib.blake2b, index: int, at: ReadAt) -> None:
        row, usable = self.take(torch.tensor([index]), at)
        for tensor in (*row, usable):
            hash_tensor(digest, tensor)

    def _read(self, indices: list[int], at: ReadAt | None) -> list[Any]:
        """The rows, with None for each that cannot be used."""
        together = self._read_together(indices)
        one_by_one: list[Callable[[], Any]] = [partial(_row_at, self.dataset, index) for index in indices]
        reads = one_by_one if together is None else together
        if at is None or (together is not None and self.prepare.collate is None):  # nothing is drawn at an address
            return [self._usable(read) for read in reads]
        rows = []
        with restored_generators() as seed:
            for index, read in zip(indices, reads, strict=True):
                seed(at.seed(index))
                rows.append(self._usable(read))
        return rows

    def _read_together(self, indices: list[int]) -> list[Callable[[], Any]] | None:
        """Functions that return the rows, or None if rows have to be read one by one, as when one of them fails."""
        if not _reads_many(self.dataset):
            return None
        try:
            rows = cast(ManyRows, self.dataset).__getitems__(indices)
        except MemoryError:
            raise
        except Exception:  # it would reveal something about the rows
            return None
        return [partial(_same, row) for row in rows] if len(rows) == len(indices) else None

    def _usable(self, read: Callable[[], Any]) -> Any:
        """The row, or None if it cannot be used. The error would reveal something about the row, and is dropped."""
        try:
            row = parts_of_row(self.prepare(read()), self.keys)
            return row if self._is_ready(row) else self._checked(row)
        except MemoryError:  # a matter of the machine, not of the row
            raise
        except Exception:
            return None

    def _is_ready(self, row: object) -> bool:
        """Whether the row has plain tensors of the public structure, and an integer label."""
        if not isinstance(row, (tuple, list)) or len(row) != len(self.structure):
            return False
        *inputs, label = row
        return (
            is_integer_scalar(self.structure[-1])
            and type(label) is int
            and -(2**63) <= label < 2**63
            and all(
                type(x) is Tensor
                and (x.shape, x.dtype, x.device, x.layout) == (like.shape, like.dtype, like.device, like.layout)
                for x, like in zip(inputs, self.structure, strict=False)
            )
        )

    def _checked(self, row: object) -> tuple[Tensor, ...] | None:
        tensors = row_tensors(row, self.keys)
        return tensors if structure_of(tensors) == structure_of(self.structure) else None


def refuse_names_of_tuples(inputs: Sequence[str] | None, target: str | None) -> None:
    """Refuses names of keys for rows that have none."""
    if inputs is not None or target is not None:
        raise UsageError("inputs= and target= name keys of dictionaries, got rows that are tuples: leave them out.")


def is_hugging_face(data: object) -> TypeGuard[Any]:
    """Whether `data` is a `datasets.Dataset`. It is not if that library was not imported."""
    known = getattr(sys.modules.get("datasets"), "Dataset", None)
    return isinstance(known, type) and isinstance(data, known)


def _reads_many(dataset: object) -> bool:
    """Whether rows may be read together. A transform of one's own may draw, and sees all rows that are read with it."""
    return isinstance(dataset, ManyRows) or (is_hugging_face(dataset) and dataset.format["type"] != "custom")


def _only_used(dataset: IndexedRows, keys: Keys | None) -> IndexedRows:
    """The dataset without columns that are not used, which would be read and decoded with each row."""
    if keys is None or not _reads_many(dataset):
        return dataset
    return cast(ManyRows, dataset).select_columns([*keys.inputs, keys.target])


class _UnfitRow(DataError):
    """A row that was read cannot be used as it was asked. The message names structure only."""


def _same(row: Any) -> Any:
    return row


def _row_at(dataset: IndexedRows, index: int) -> Any:
    return dataset[index]


def _without_batch(batch: Any) -> Any:
    """The row in a batch of one row."""
    if isinstance(batch, Mapping):
        return {name: _single(part) for name, part in batch.items()}
    if isinstance(batch, (tuple, list)):
        return tuple(map(_single, batch))
    raise _UnfitRow(f"collate_fn must make a tuple or a dictionary of tensors, got {type(batch).__name__}.")


def _single(part: Any) -> Any:
    if not isinstance(part, (Tensor, np.ndarray, list)) or len(part) != 1:
        raise _UnfitRow("collate_fn gets each row alone: it must make parts with one entry for one row.")
    return part[0]


@contextmanager
def restored_generators() -> Iterator[Callable[[int], None]]:
    """Yields a function that seeds torch, numpy and random. On exit, their states are restored.

    States are copied once. `torch.manual_seed` is not used, because it looks for devices at each call.
    """
    generators = [torch.default_generator, *torch.cuda.default_generators]
    torch_states, numpy_state = [generator.get_state() for generator in generators], np.random.get_state(legacy=False)
    python_state = random.getstate()

    def seed(number: int) -> None:
        for generator in generators:
            generator.manual_seed(number)
        np.random.seed(number & 0xFFFFFFFF)
        random.seed(number)

    try:
        yield seed
    finally:
        for generator, state in zip(generators, torch_states, strict=True):
            generator.set_state(state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _inspected_rows(
    dataset: IndexedRows, indices: Sequence[int], prepare: Preparation
) -> tuple[list[object], list[str]]:
    """The rows `indices`, and the reasons why others cannot be read."""
    rows, reasons = list[object](), list[str]()
    with restored_generators():
        for index in indices:
            try:
                rows.append(prepare(dataset[index]))
            except MemoryError:
                raise
            except _UnfitRow as error:
                reasons.append(str(error))
            except Exception as error:  # its message may quote the row
                attempt = "data[0]" if prepare.collate is None else "collate_fn([data[0]])"
                reasons.append(f"reading a row of the dataset raises {type(error).__name__}: try {attempt}.")
    return rows, reasons


def _keys_of_most(
    rows: Sequence[object], inputs: Sequence[str] | None, target: str | None, *, among: int
) -> Keys | None:
    """The keys of more than half of the rows, if these are dictionaries with equal keys; None if they are not."""
    keys = most_of([tuple(row) if isinstance(row, Mapping) else None for row in rows] + [None] * (among - len(rows)))
    if keys is None and 2 * sum(isinstance(row, Mapping) for row in rows) > among:
        raise DataError("the rows of the dataset differ in their keys: give each row the same keys in one order.")
    return None if keys is None else Keys.of(keys, inputs, target)
