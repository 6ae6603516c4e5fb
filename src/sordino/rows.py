"""Rows of (inputs..., target), in memory or read when drawn, with one public structure that is checked here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sordino.errors import DataError, UsageError

_ROWS_TO_COMPARE = 256


class Rows(Protocol):
    """Rows of (inputs..., target) that can be taken by index."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The rows `indices`, stacked: a copy, which may be written to."""
        ...

    def empty(self) -> tuple[Tensor, ...]:
        """No rows, in the public shapes and dtypes."""
        ...

    def sample_of(self) -> Iterator[tuple[Tensor, ...]]:
        """Rows by which this data can be told from other data: all that are in memory, some of what must be read."""
        ...


@dataclass(frozen=True)
class _InMemory:
    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.index_select(0, indices.to(x.device)) for x in self.tensors)

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x[:0] for x in self.tensors)

    def sample_of(self) -> Iterator[tuple[Tensor, ...]]:
        yield self.tensors


@dataclass(frozen=True)
class _Lazy:
    """A map-style data set, read when a row is drawn. The first row declares the structure."""

    dataset: Dataset[Any]
    structure: tuple[Tensor, ...]
    length: int

    def __len__(self) -> int:
        return self.length

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        if len(indices) == 0:  # a collate function never sees an empty list
            return self.empty()
        rows = [self.dataset[int(index)] for index in indices]
        if all(map(self._is_ready, rows)):  # as most are; columns at once are quicker than cell by cell
            *inputs, labels = zip(*rows, strict=True)
            return *(torch.stack(x).detach() for x in inputs), torch.tensor(labels)
        return tuple(torch.stack(column) for column in zip(*map(self._checked, rows), strict=True))

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x.new_empty((0, *x.shape)) for x in self.structure)

    def sample_of(self) -> Iterator[tuple[Tensor, ...]]:
        for index in range(0, self.length, max(1, self.length // _ROWS_TO_COMPARE)):
            yield self._checked(self.dataset[index])

    def _is_ready(self, row: object) -> bool:
        """Plain tensors like those of the first row, and a whole number for a label."""
        if not isinstance(row, (tuple, list)) or len(row) != len(self.structure):
            return False
        *inputs, label = row
        number = self.structure[-1].dtype == torch.int64 and self.structure[-1].ndim == 0
        return (
            number
            and type(label) is int
            and all(
                type(x) is Tensor and x.shape == like.shape and x.dtype == like.dtype and x.layout == like.layout
                for x, like in zip(inputs, self.structure, strict=False)
            )
        )

    def _checked(self, row: object) -> tuple[Tensor, ...]:
        row = _row_tensors(row)
        found, declared = [[(tuple(x.shape), x.dtype) for x in tensors] for tensors in (row, self.structure)]
        if found != declared:
            raise DataError(
                f"each row must have the shapes of the first, {declared}, got {found}: pad or crop the rows."
            )
        return row


def as_rows(data: object) -> Rows:
    """Rows from tensors, arrays, or a map-style data set of tuples."""
    if isinstance(data, DataLoader):
        raise UsageError("data must be a data set, got a DataLoader: give its .dataset, the run draws its own batches.")
    if isinstance(data, IterableDataset):
        raise UsageError("data must be indexable to be sampled, got an IterableDataset: give a map-style Dataset.")
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, (tuple, list)):
        return _in_memory(data)
    if isinstance(data, Dataset):
        return _lazy(data)
    raise UsageError(f"data must be (inputs..., target) or a map-style Dataset, got {type(data).__name__}.")


def _in_memory(parts: Sequence[object]) -> Rows:
    names = _part_names(len(parts))
    tensors = tuple(as_tensor(part, name) for part, name in zip(parts, names, strict=True))
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.ndim == 0:
            raise DataError(f"{name} must have one entry per row along the first axis, got a single number.")
    if len({len(x) for x in tensors}) > 1:
        lengths = ", ".join(f"n of {name} {len(x)}" for x, name in zip(tensors, names, strict=True))
        raise DataError(f"parts of the data differ in length: {lengths}.")
    _refuse_boolean_target(tensors[-1])
    return _InMemory(tensors)


def _lazy(dataset: Dataset[Any]) -> Rows:
    if not hasattr(dataset, "__len__"):
        raise DataError(f"the data set must know its length, {type(dataset).__name__} has no __len__.")
    length = len(dataset)
    if length == 0:
        raise DataError("the data set is empty.")
    structure = _row_tensors(dataset[0])
    _refuse_boolean_target(structure[-1])
    return _Lazy(dataset, structure, length)


def _row_tensors(row: object) -> tuple[Tensor, ...]:
    if not isinstance(row, (tuple, list)):
        raise DataError(f"each row of the data set must be a tuple (inputs..., target), got {type(row).__name__}.")
    parts = (np.asarray(part) if isinstance(part, (int, float, np.generic)) else part for part in row)
    return tuple(as_tensor(part, name) for part, name in zip(parts, _part_names(len(row)), strict=True))


def _part_names(number: int) -> list[str]:
    if number < 2:
        raise DataError(f"data must have inputs and a target, got {number} part(s).")
    inputs = ["inputs"] if number == 2 else [f"inputs[{i}]" for i in range(number - 1)]
    return [*inputs, "targets"]


def as_tensor(part: object, name: str) -> Tensor:
    """A plain real tensor that shares memory with `part` where it can."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "fiub":
            raise DataError(f"{name} must hold numbers, got an array of dtype {part.dtype}.")
        native = np.require(part, part.dtype.newbyteorder("="), ["C", "W"])
        part = torch.from_numpy(native if native.itemsize <= 8 else native.astype(np.float64))
    if not isinstance(part, Tensor):
        raise DataError(f"{name} must be a tensor or an array, got {type(part).__name__}.")
    if part.is_complex() or part.layout != torch.strided:
        raise DataError(f"{name} must be a dense real tensor, got {part.dtype} with layout {part.layout}.")
    unsigned = part.dtype in (torch.uint16, torch.uint32, torch.uint64)
    return part.detach().to(torch.int64) if unsigned else part.detach()


def _refuse_boolean_target(target: Tensor) -> None:
    if target.dtype == torch.bool:
        raise DataError("targets are boolean: cast to int64 for class labels or to float32 for a binary loss.")
