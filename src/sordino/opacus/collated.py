"""Rows as a script's `collate_fn` makes them: one row at a time, with names, and with sizes of their own.

`collate_fn([row])` gives a batch of one. A function that saw several rows could let one change the others: padding to
the longest row of a batch shows every model how long that row is. So each row keeps its own sizes, and the tensors that
a script sees are padded with zeros to look at only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from sordino.errors import DataError, UsageError
from sordino.kernel.lazy_rows import restored_generators
from sordino.kernel.records import Batch, Records, as_records
from sordino.kernel.row_structure import most_of
from sordino.kernel.rows import SOME_ROWS, ReadAt, evenly_spaced, hash_tensor

_ROWS_TO_INSPECT = 33
_MOST_THAT_DIFFER = 3  # of these rows, for a size that all rows are to have
_OWN_SIZE = 16  # of synthetic rows, on an axis where each row has its own size

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Form:
    """What each batch looks like, which is public: keys, and shape and dtype of the columns of a row.

    `keys` are those of a dictionary, "tuple", or "tensor" for a bare tensor. `own_sizes` are the axes of a column on
    which each row has a size of its own, counted without the axis of rows. `row` has zeros in public sizes.
    """

    keys: tuple[str, ...] | str
    row: tuple[Tensor, ...]
    own_sizes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, records: Records) -> Form:
        """The form of rows that are tuples of one shape."""
        if isinstance(records.rows, CollatedRows):
            return records.rows.form
        row = tuple(x.new_zeros(x.shape[1:]) for x in records.rows.empty())
        return cls("tuple", row, ((),) * len(row))

    @property
    def is_ragged(self) -> bool:
        """Whether some rows differ in their sizes."""
        return any(self.own_sizes)

    @property
    def public_sizes(self) -> list[int]:
        """The sizes of synthetic rows on the axes where rows have their own."""
        return [self.row[place].shape[axis] for place, axis in self.ragged_axes]

    @property
    def ragged_axes(self) -> list[tuple[int, int]]:
        """Pairs of a column and an axis, in the order in which sizes are kept."""
        return [(place, axis) for place, axes in enumerate(self.own_sizes) for axis in axes]

    def larger(self, batch: Batch) -> Batch:
        """Synthetic rows that are larger by one on the axes where rows have their own sizes."""
        columns = [*batch.inputs, batch.target]
        for place, axis in self.ragged_axes:
            shape = [size + (here == axis + 1) for here, size in enumerate(columns[place].shape)]
            columns[place] = columns[place].new_zeros(shape)
        return replace(batch, inputs=tuple(columns[:-1]), target=columns[-1])

    def batch_of(self, columns: Sequence[Any]) -> Any:
        """The columns as the script's `collate_fn` returns them."""
        if self.keys == "tensor":
            return columns[0]
        return list(columns) if self.keys == "tuple" else dict(zip(self.keys, columns, strict=True))


@dataclass(frozen=True)
class CollatedRows:
    """Rows of a map-style dataset, each made a batch of one by `collate`. Sizes of their own are an extra column."""

    dataset: Any
    collate: Collate
    form: Form

    @property
    def names(self) -> tuple[str, ...]:
        return ()  # the script names the inputs when it calls the model

    @property
    def target_name(self) -> str:
        return ""

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """The rows in new memory, padded with zeros, then their sizes; and which of them can be used."""
        read = [None if row is None else self._fitting(row) for row in self._read(indices.tolist(), at)]
        usable = torch.tensor([row is not None for row in read], dtype=torch.bool)
        rows = [self.form.row if row is None else row for row in read]
        columns = [_padded([row[place] for row in rows], like) for place, like in enumerate(self.form.row)]
        axes = self.form.ragged_axes
        sizes = torch.tensor([[row[place].shape[axis] for place, axis in axes] for row in rows], dtype=torch.int64)
        return self._with_sizes(columns, sizes.reshape(len(rows), len(axes))), usable

    def empty(self) -> tuple[Tensor, ...]:
        columns = [x.new_empty((0, *x.shape)) for x in self.form.row]
        return self._with_sizes(columns, torch.zeros(0, len(self.form.ragged_axes), dtype=torch.int64))

    @property
    def hashed(self) -> str:
        return SOME_ROWS

    def hash_into(self, digest: hashlib.blake2b, at: ReadAt) -> None:
        for index in evenly_spaced(len(self)):
            row, usable = self.take(torch.tensor([index]), at)
            for tensor in (*row, usable):
                hash_tensor(digest, tensor)

    def are_repeatable(self, at: ReadAt) -> bool:
        return False  # steps of a script are never repeated

    def _with_sizes(self, columns: list[Tensor], sizes: Tensor) -> tuple[Tensor, ...]:
        return (*columns[:-1], sizes, columns[-1]) if self.form.is_ragged else tuple(columns)

    def _read(self, indices: list[int], at: ReadAt | None) -> list[Any]:
        if at is None:
            return [self._row(index) for index in indices]
        rows = []
        with restored_generators() as seed:
            for index in indices:
                seed(at.seed(index))
                rows.append(self._row(index))
        return rows

    def _row(self, index: int) -> tuple[Tensor, ...] | None:
        """The row, or None if it cannot be used. The error would reveal something about the row, and is dropped."""
        try:
            keys, columns = _parts(self.collate([self.dataset[index]]))
        except MemoryError:  # a matter of the machine, not of the row
            raise
        except Exception:
            return None
        return columns if keys == self.form.keys else None

    def _fitting(self, row: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """The row if its shapes and dtypes are the public ones, on all axes but those of its own sizes."""
        if len(row) != len(self.form.row):
            return None
        for x, like, own in zip(row, self.form.row, self.form.own_sizes, strict=True):
            if (x.dtype, x.device, x.ndim) != (like.dtype, like.device, like.ndim):
                return None
            if any(x.shape[axis] != like.shape[axis] for axis in range(x.ndim) if axis not in own):
                return None
        return row


def records_of(loader: DataLoader[Any], dtype: torch.dtype) -> Records:
    """The rows of a loader: as its `collate_fn` makes them if it has one, or if they are dictionaries."""
    dataset, collate = loader.dataset, loader.collate_fn
    if collate is default_collate and (isinstance(dataset, TensorDataset) or not _are_dictionaries(dataset)):
        return as_records(dataset, dtype=dtype)
    if not hasattr(dataset, "__len__") or len(dataset) < 2:
        raise DataError("the dataset must have two rows or more.")
    return Records(CollatedRows(dataset, collate, _form_of(dataset, collate)), None, None, dtype)


def _are_dictionaries(dataset: Any) -> bool:
    return most_of([isinstance(row, Mapping) for row in _inspected(dataset, lambda rows: rows[0])]) is True


def _inspected(dataset: Any, read: Collate) -> list[Any]:
    """Results for evenly spaced rows, None for one that fails."""
    found = []
    with restored_generators():
        for index in range(0, len(dataset), -(-len(dataset) // _ROWS_TO_INSPECT)):
            try:
                found.append(read([dataset[index]]))
            except MemoryError:
                raise
            except Exception:
                found.append(None)
    return found


def _form_of(dataset: Any, collate: Collate) -> Form:
    """The form of more than half of the inspected rows.

    A size is public if nearly all of these have it; else each row keeps its own. One row changes this only if as many
    others differ as may.
    """
    results = _inspected(dataset, lambda rows: _described(collate(rows)))
    kind = most_of([None if x is None else x[0] for x in results])
    if kind is None:
        raise UsageError(
            "collate_fn must make a tuple or a dictionary of tensors with a first axis of length 1 from most rows, "
            "when it is called with a list of one row: try collate_fn([dataset[0]])."
        )
    keys, dtypes = kind
    shapes = [x[1] for x in results if x is not None and x[0] == kind]
    row, own = [], []
    for place, (dtype, ndim) in enumerate(dtypes):
        sizes = [_public_size([shape[place][axis] for shape in shapes]) for axis in range(ndim)]
        row.append(torch.zeros([_OWN_SIZE if size is None else size for size in sizes], dtype=dtype))
        own.append(tuple(axis for axis, size in enumerate(sizes) if size is None))
    return Form(keys, tuple(row), tuple(own))


def _public_size(sizes: list[int]) -> int | None:
    size, times = Counter(sizes).most_common(1)[0]
    return size if len(sizes) - times <= min(_MOST_THAT_DIFFER, len(sizes) // 10) else None


def _described(collated: Any) -> tuple[Any, list[torch.Size]]:
    keys, columns = _parts(collated)
    return (keys, tuple((x.dtype, x.ndim) for x in columns)), [x.shape for x in columns]


def _parts(collated: Any) -> tuple[tuple[str, ...] | str, tuple[Tensor, ...]]:
    """Keys and tensors of a batch of one, without the axis of rows."""
    keys: tuple[str, ...] | str
    if isinstance(collated, Tensor):
        keys, columns = "tensor", [collated]
    elif isinstance(collated, Mapping):
        keys, columns = tuple(collated), list(collated.values())
    else:
        keys, columns = "tuple", list(collated)
    if not columns or not all(isinstance(x, Tensor) and x.ndim and len(x) == 1 for x in columns):
        raise UsageError("a batch of one must have tensors with a first axis of length 1.")
    return keys, tuple(x.detach()[0] for x in columns)


def _padded(rows: list[Tensor], like: Tensor) -> Tensor:
    """The rows stacked, with zeros up to the largest of them, and at least up to the public sizes."""
    shape = [max(sizes) for sizes in zip(like.shape, *(x.shape for x in rows), strict=True)]
    stacked = like.new_zeros((len(rows), *shape))
    for place, x in enumerate(rows):
        stacked[place][tuple(slice(size) for size in x.shape)] = x
    return stacked
