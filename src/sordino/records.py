"""The data of a run: what one privacy unit owns, gathered by index and made finite on the way.

Structure (shapes, dtypes, the number of units) is public and checked once, with an error that says what is wrong.
Values are private: a row that cannot be used is marked invalid and counts as absent, without a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sordino import validate
from sordino.errors import DataError, UsageError

_TEMPLATE_SEED = 20_251


@dataclass(frozen=True)
class Batch:
    """The rows of some privacy units. `units[r]` in 0..num_units-1 is the unit that row `r` belongs to.

    An invalid row holds zeros and contributes nothing; its unit stays.
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    valid: Tensor
    units: Tensor
    num_units: int

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        inputs = tuple(x.to(device) for x in self.inputs)
        return Batch(inputs, self.target.to(device), self.valid.to(device), self.units.to(device), self.num_units)

    def take(self, rows: slice) -> Batch:
        """Some of the rows; the units keep their slots."""
        inputs = tuple(x[rows] for x in self.inputs)
        return Batch(inputs, self.target[rows], self.valid[rows], self.units[rows], self.num_units)

    def synthetic(self) -> Batch:
        """The same number of rows with made-up values."""
        generator = torch.Generator().manual_seed(_TEMPLATE_SEED)
        inputs = tuple(_synthetic(x, len(x), generator, 0.0, 0.0).to(x.device) for x in self.inputs)
        target = _synthetic(self.target, len(self.target), generator, 0.0, 1.0).to(self.target.device)
        return replace(self, inputs=inputs, target=target)


@dataclass(frozen=True)
class Records:
    """Data whose privacy units can be gathered by index. Made by `as_records` or `by_user`.

    >>> records = as_records((torch.zeros(10, 3), torch.zeros(10, dtype=torch.int64)))
    >>> records.num_units, records.unit
    (10, 'example')
    >>> records.gather(torch.tensor([4, 2])).inputs[0].shape
    torch.Size([2, 3])
    """

    rows: Rows
    owners: Owners | None
    input_range: tuple[float, float] | None
    dtype: torch.dtype

    @property
    def num_units(self) -> int:
        return len(self.rows) if self.owners is None else len(self.owners.counts)

    @property
    def unit(self) -> str:
        """What one privacy unit is: an example, or a user with all of their rows."""
        return "example" if self.owners is None else "user"

    def gather(self, indices: Tensor) -> Batch:
        """The rows of the units `indices` (distinct), finite and in the public range. No units give an empty batch."""
        if bool((indices.sort().values.diff() == 0).any()):  # twice in one batch would be twice the sensitivity
            raise UsageError(f"a unit joins a batch at most once, got {len(indices)} indices with repetitions.")
        if self.owners is None:
            rows, units = indices, torch.arange(len(indices))
        else:
            rows, units = self.owners.rows_of(indices)
        *inputs, target = (self._arriving(x, last) for x, last in _mark_last(self.rows.take(rows)))
        valid = torch.stack([_finite_rows(x) for x in (*inputs, target)]).all(dim=0)
        cleaned = tuple(_zero_unless(valid, self._clamped(x)) for x in inputs)
        return Batch(cleaned, _zero_unless(valid, target), valid, units.to(valid.device), len(indices))

    def template(self, num_rows: int) -> Batch:
        """Synthetic rows of the public shape, one per unit, for probing a model without touching data.

        Floating inputs are normal (uniform on `input_range` where there is one), floating targets uniform on [0, 1),
        whole numbers 0 or 1. The same values on every call.
        """
        generator = torch.Generator().manual_seed(_TEMPLATE_SEED)
        *inputs, target = (self._arriving(x, last) for x, last in _mark_last(self.rows.empty()))
        low, high = self.input_range or (0.0, 0.0)
        drawn = tuple(_synthetic(x, num_rows, generator, low, high) for x in inputs)
        labels = _synthetic(target, num_rows, generator, 0.0, 1.0)
        return Batch(drawn, labels, torch.ones(num_rows, dtype=torch.bool), torch.arange(num_rows), num_rows)

    def _arriving(self, tensor: Tensor, is_target: bool) -> Tensor:
        """In the dtype that the model sees: `dtype` for floats and pictures, int64 for labels, token ids unchanged."""
        if tensor.is_floating_point() or (tensor.dtype == torch.uint8 and not is_target):
            return tensor.to(self.dtype)
        return tensor.to(torch.int64) if is_target else tensor

    def _clamped(self, tensor: Tensor) -> Tensor:
        if self.input_range is None or not tensor.is_floating_point():
            return tensor
        return tensor.clamp(*self.input_range)


def as_records(
    data: object,
    *,
    input_range: tuple[float, float] | None = None,
    allow_single: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Records:
    """Each row is a privacy unit. `data` is (inputs..., target), tensors or arrays, or a map-style `Dataset` of tuples.

    Floating inputs and uint8 pictures arrive in `dtype`, clamped to the public `input_range`; whole numbers stay.

    >>> as_records((np.zeros((10, 3)), np.zeros(9, dtype=int)))
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: parts of the data differ in length: n of inputs 10, n of targets 9.
    """
    if input_range is not None:
        validate.between(-3e38, 3e38, input_range_low=input_range[0], input_range_high=input_range[1])
        if not input_range[0] < input_range[1]:
            raise UsageError(f"input_range must be (low, high) with low < high, got {input_range}.")
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(f"dtype must be torch.float32 or torch.float64, got {dtype}.")
    if isinstance(data, Records):
        return data if input_range is None else replace(data, input_range=input_range)
    records = Records(_rows(data), None, input_range, dtype)
    _refuse_too_few(records, allow_single)
    return records


def by_user(
    data: object,
    owners: Tensor | NDArray[Any],
    *,
    rows_per_user: int,
    input_range: tuple[float, float] | None = None,
    allow_single: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Records:
    """The user is the privacy unit: row `r` belongs to `owners[r]`, and a user's gradients are summed before the clip.

    Of each user the first `rows_per_user` rows in order are kept. Without that bound one user could fill a batch.

    >>> users = by_user((torch.zeros(4, 3), torch.zeros(4)), torch.tensor([7, 8, 7, 7]), rows_per_user=2)
    >>> users.num_units, users.gather(torch.tensor([0])).units
    (2, tensor([0, 0]))
    """
    validate.count(rows_per_user=rows_per_user)
    records = as_records(data, input_range=input_range, allow_single=True, dtype=dtype)
    ids = owners if isinstance(owners, Tensor) else _tensor(owners, "owners")
    num_rows = len(records.rows)
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != (num_rows,):
        found = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise DataError(f"owners must be one whole number for each of the {num_rows} rows, got {found}.")
    records = replace(records, owners=Owners.of(ids.cpu(), rows_per_user))
    _refuse_too_few(records, allow_single)
    return records


@dataclass(frozen=True)
class Owners:
    """Which rows each user owns: `order[starts[u] : starts[u] + counts[u]]`, in the order of the data."""

    order: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, ids: Tensor, rows_per_user: int) -> Owners:
        """Users are numbered by their sorted ids; later rows than the first `rows_per_user` are left out."""
        counts = torch.from_numpy(np.unique(ids.numpy(), return_counts=True)[1])
        return cls(ids.argsort(stable=True), counts.cumsum(0) - counts, counts.clamp(max=rows_per_user))

    def rows_of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of `users`, and for each row the position of its user in `users`."""
        counts = self.counts[users]
        slots = torch.arange(len(users)).repeat_interleave(counts)
        place_within_user = torch.arange(len(slots)) - (counts.cumsum(0) - counts)[slots]
        return self.order[self.starts[users][slots] + place_within_user], slots


class Rows(Protocol):
    """Rows of (inputs..., target) that can be taken by index."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The rows `indices`, stacked."""
        ...

    def empty(self) -> tuple[Tensor, ...]:
        """No rows, in the public shapes and dtypes."""
        ...


@dataclass(frozen=True)
class _InMemory:
    tensors: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: Tensor) -> tuple[Tensor, ...]:
        return tuple(x[indices.to(x.device)] for x in self.tensors)

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x[:0] for x in self.tensors)


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
        rows = [self._row(int(index)) for index in indices]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x.new_empty((0, *x.shape)) for x in self.structure)

    def _row(self, index: int) -> tuple[Tensor, ...]:
        row = _row_tensors(self.dataset[index])
        found, declared = [[(tuple(x.shape), x.dtype) for x in tensors] for tensors in (row, self.structure)]
        if found != declared:
            raise DataError(
                f"each row must have the shapes of the first, {declared}, got {found}: pad or crop the rows."
            )
        return row


def _rows(data: object) -> Rows:
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
    tensors = tuple(_tensor(part, name) for part, name in zip(parts, names, strict=True))
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
    return tuple(_tensor(part, name) for part, name in zip(parts, _part_names(len(row)), strict=True))


def _part_names(number: int) -> list[str]:
    if number < 2:
        raise DataError(f"data must have inputs and a target, got {number} part(s).")
    inputs = ["inputs"] if number == 2 else [f"inputs[{i}]" for i in range(number - 1)]
    return [*inputs, "targets"]


def _tensor(part: object, name: str) -> Tensor:
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


def _refuse_too_few(records: Records, allow_single: bool) -> None:
    if records.num_units == 0:
        raise DataError("the data set is empty.")
    if records.num_units == 1 and not allow_single:
        raise DataError(f"the data set has 1 {records.unit} and none to hide among: give more, or allow_single=True.")


def _mark_last(tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, bool]]:
    return [(x, position == len(tensors) - 1) for position, x in enumerate(tensors)]


def _finite_rows(tensor: Tensor) -> Tensor:
    """Whether each row is finite throughout. A row with no entries is."""
    return tensor.isfinite().reshape(len(tensor), tensor[:1].numel() if len(tensor) else 1).all(dim=1)


def _zero_unless(valid: Tensor, tensor: Tensor) -> Tensor:
    return torch.where(valid.reshape(-1, *[1] * (tensor.ndim - 1)), tensor, torch.zeros_like(tensor))


def _synthetic(like: Tensor, num_rows: int, generator: torch.Generator, low: float, high: float) -> Tensor:
    shape = (num_rows, *like.shape[1:])
    if not like.is_floating_point():
        return torch.randint(2, shape, generator=generator).to(like.dtype)
    if low == high:
        return torch.randn(shape, generator=generator, dtype=like.dtype)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=like.dtype)
