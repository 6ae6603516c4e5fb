"""The data of a run: what one privacy unit owns, gathered by index and made finite on the way.

Structure (shapes, dtypes, the number of units) is public and checked once, with an error that says what is wrong.
Values are private: a row that cannot be used is marked invalid and counts as absent, without a message.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sordino._input import validate
from sordino.accounting.guarantee import Unit
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Stream
from sordino.kernel.rows import ReadAt, Rows, as_rows, as_tensor

_TEMPLATE_SEED = 20_251
_REPEATED = b"read some rows twice"


@dataclass(frozen=True)
class Batch:
    """The rows of some privacy units. `units[r]` in 0..num_units-1 is the unit that row `r` belongs to.

    An invalid row holds zeros and contributes nothing; its unit stays.
    """

    inputs: tuple[Tensor, ...] = field(repr=False)  # private values stay out of logs and tracebacks
    target: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)
    units: Tensor = field(repr=False)
    num_units: int

    def to(self, device: torch.device) -> Batch:
        """The same batch on another device."""
        inputs = tuple(x.to(device) for x in self.inputs)
        return Batch(inputs, self.target.to(device), self.valid.to(device), self.units.to(device), self.num_units)

    def take(self, rows: slice) -> Batch:
        """Some of the rows; the units keep their slots."""
        inputs = tuple(x[rows] for x in self.inputs)
        return Batch(inputs, self.target[rows], self.valid[rows], self.units[rows], self.num_units)

    def without(self, rows: Tensor) -> Batch:
        """This batch with made-up values, which do not count, in place of the rows that are True."""
        made_up = self.synthetic()
        inputs = (torch.where(_along(rows, x), other, x) for x, other in zip(self.inputs, made_up.inputs, strict=True))
        target = torch.where(_along(rows, self.target), made_up.target, self.target)
        return replace(self, inputs=tuple(inputs), target=target, valid=self.valid & ~rows)

    def synthetic_row(self) -> tuple[Tensor, ...]:
        """The inputs of one row with made-up values."""
        return self.take(slice(0, 1)).synthetic().inputs

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
    >>> records.num_units, str(records.unit)
    (10, 'example')
    >>> records.gather(torch.tensor([4, 2])).inputs[0].shape
    torch.Size([2, 3])
    """

    rows: Rows = field(repr=False)
    owners: Owners | None = field(repr=False)
    input_range: tuple[float, float] | None
    dtype: torch.dtype

    @property
    def num_units(self) -> int:
        return len(self.rows) if self.owners is None else len(self.owners.counts)

    @property
    def unit(self) -> Unit:
        """What one privacy unit is: an example, or a user with all of their rows."""
        return Unit.EXAMPLE if self.owners is None else Unit.USER

    @property
    def rows_per_unit(self) -> int:
        """The public bound on the rows of one unit."""
        return 1 if self.owners is None else self.owners.rows_per_user

    def gather(self, indices: Tensor, at: ReadAt | None = None) -> Batch:
        """The rows of the units `indices` (distinct), finite and in the public range. No units give an empty batch.

        Rows that draw while they are read draw what belongs to their place `at` a step, so that it can be repeated.
        """
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise UsageError(f"indices must be int64 and 1-D, got {indices.dtype} of shape {tuple(indices.shape)}.")
        in_order = indices if bool((indices.diff() > 0).all()) else indices.sort().values  # as samplers give them
        if len(in_order) and not (in_order[0] >= 0 and in_order[-1] < self.num_units):
            raise UsageError(f"indices must be in 0..{self.num_units - 1}.")
        if in_order is not indices and bool((in_order.diff() == 0).any()):
            # Twice in one batch would be twice the sensitivity.
            raise UsageError(f"a unit joins a batch at most once, got {len(indices)} indices with repetitions.")
        if self.owners is None:
            rows, units = indices, torch.arange(len(indices))
        else:
            rows, units = self.owners.rows_of(indices)
        taken, usable = self.rows.take(rows, at)
        *inputs, target = (self._arriving(x, last) for x, last in _mark_last(taken))
        finite = [_finite_rows(x).to(target.device) for x in (*inputs, target) if x.is_floating_point()]
        valid = torch.stack([usable.to(target.device), *finite]).all(dim=0)
        invalid = (~valid).nonzero()[:, 0]
        inputs = [self._clamp_(x) for x in inputs]
        for x in (*inputs, target) if len(invalid) else ():
            x.index_fill_(0, invalid, 0)
        return Batch(tuple(inputs), target, valid, units.to(valid.device), len(indices))

    def fingerprint(self, secret: bytes) -> str:
        """A keyed hash by which a run knows its data again. Rows that are read when drawn are looked at in part."""
        digest = hashlib.blake2b(repr((len(self.rows), self.input_range, self.dtype)).encode(), key=secret)
        owners = () if self.owners is None else (self.owners.order, self.owners.starts, self.owners.counts)
        sample = self.rows.sample_of(ReadAt(Stream(secret), 0))
        for tensor in (*owners, *itertools.chain.from_iterable(sample)):
            digest.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def check_repeatable(self) -> None:
        """Refuses data whose rows differ from one reading to the next, for a run that may be stopped and resumed.

        A step that was begun before the stop is taken again with the same noise: on other rows, the difference of the
        two releases would be free of it. Some rows are read twice; rows that draw from the generators of torch, numpy
        or random are the same both times, because these are seeded for each row of each step.
        """
        if not self.rows.are_repeatable(ReadAt(Stream(_REPEATED), 0)):
            raise UsageError(
                "rows of the data set are not the same when they are read twice, so no step could be repeated after a "
                "stop: augment by views=Views(...), or draw from torch's, numpy's or Python's global generator, not "
                "one of your own."
            )

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

    def _clamp_(self, tensor: Tensor) -> Tensor:
        if self.input_range is None or not tensor.is_floating_point():
            return tensor
        return tensor.clamp_(*self.input_range)


Data: TypeAlias = "Dataset[Any] | Sequence[Tensor | NDArray[Any]] | Records"


def as_records(
    data: Data,
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
        validate.interval(-3e38, 3e38, input_range=input_range)
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(f"dtype must be torch.float32 or torch.float64, got {validate.shown(dtype)}.")
    if isinstance(data, Records):
        return data if input_range is None else replace(data, input_range=input_range)
    records = Records(as_rows(data), None, input_range, dtype)
    _refuse_too_few(records, allow_single)
    return records


def by_user(
    data: Data,
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
    ids = owners if isinstance(owners, Tensor) else as_tensor(owners, "owners")
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
    rows_per_user: int

    @classmethod
    def of(cls, ids: Tensor, rows_per_user: int) -> Owners:
        """Users are numbered by their sorted ids; later rows than the first `rows_per_user` are left out."""
        counts = torch.from_numpy(np.unique(ids.numpy(), return_counts=True)[1])
        starts, kept = counts.cumsum(0) - counts, counts.clamp(max=rows_per_user)
        return cls(ids.argsort(stable=True), starts, kept, rows_per_user)

    def rows_of(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of `users`, and for each row the position of its user in `users`."""
        counts = self.counts[users]
        slots = torch.arange(len(users)).repeat_interleave(counts)
        place_within_user = torch.arange(len(slots)) - (counts.cumsum(0) - counts)[slots]
        return self.order[self.starts[users][slots] + place_within_user], slots


def _refuse_too_few(records: Records, allow_single: bool) -> None:
    if records.num_units == 0:
        raise DataError("the data set is empty.")
    if records.num_units == 1 and not allow_single:
        raise DataError(f"the data set has 1 {records.unit} and none to hide among: give more, or allow_single=True.")


def _mark_last(tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, bool]]:
    return [(x, position == len(tensors) - 1) for position, x in enumerate(tensors)]


def _finite_rows(tensor: Tensor) -> Tensor:
    """Whether each row is finite throughout. A row with no entries is."""
    rows = tensor.reshape(len(tensor), tensor[:1].numel() if len(tensor) else 1)
    finite = rows.sum(dim=1).isfinite()  # one pass: what is not finite stays so in every sum
    overflown = (~finite).nonzero()[:, 0]
    if len(overflown):
        finite[overflown] = rows[overflown].isfinite().all(dim=1)
    return finite


def _along(rows: Tensor, values: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (values.ndim - 1))


def _synthetic(like: Tensor, num_rows: int, generator: torch.Generator, low: float, high: float) -> Tensor:
    shape = (num_rows, *like.shape[1:])
    if not like.is_floating_point():
        return torch.randint(2, shape, generator=generator).to(like.dtype)
    if low == high:
        return torch.randn(shape, generator=generator, dtype=like.dtype)
    return low + (high - low) * torch.rand(shape, generator=generator, dtype=like.dtype)
