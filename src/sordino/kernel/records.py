"""The data of a run by privacy unit: the rows of each unit are gathered by index and made finite.

Structure (shapes, dtypes, the number of units) is public. It is checked once, with an error that says what is wrong.
Values are private: a row that cannot be used is marked invalid and counts as absent, without a message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader

from sordino._input import validate
from sordino.accounting.guarantee import Unit
from sordino.errors import DataError, UsageError
from sordino.kernel.buckets import Buckets, real_lengths
from sordino.kernel.data_forms import RawData, as_rows, refuse_other_forms
from sordino.kernel.loading import Loading, ReadAhead
from sordino.kernel.randomness import Stream
from sordino.kernel.row_structure import as_tensor
from sordino.kernel.rows import InMemory, ReadAt, Rows, hash_tensor

_TEMPLATE_SEED = 20_251
_REPEATED = b"read some rows twice"


@dataclass(frozen=True)
class Batch:
    """The rows of some privacy units. `units[r]` in 0..num_units-1 is the unit that row `r` belongs to.

    An invalid row holds zeros and contributes nothing; its unit stays. `names` are the arguments of the model's
    `forward` that get the inputs; without names, inputs go by position.
    """

    inputs: tuple[Tensor, ...] = field(repr=False)  # keeps private values out of logs and tracebacks
    target: Tensor = field(repr=False)
    valid: Tensor = field(repr=False)
    units: Tensor = field(repr=False)
    num_units: int
    names: tuple[str, ...] = ()

    def to(self, device: torch.device) -> Batch:
        """This batch on another device."""
        inputs, (target, valid, units) = (
            tuple(x.to(device) for x in part) for part in (self.inputs, (self.target, self.valid, self.units))
        )
        return replace(self, inputs=inputs, target=target, valid=valid, units=units)

    def take(self, rows: slice) -> Batch:
        """A slice of the rows. The units keep their positions."""
        inputs = tuple(x[rows] for x in self.inputs)
        return replace(self, inputs=inputs, target=self.target[rows], valid=self.valid[rows], units=self.units[rows])

    def of_units(self, chosen: Tensor) -> tuple[Batch, Tensor]:
        """The rows of some units, numbered anew in this order, and the indices of these rows."""
        places = torch.full((self.num_units,), -1).index_put((chosen,), torch.arange(len(chosen)))
        rows = (places[self.units] >= 0).nonzero()[:, 0]
        inputs = tuple(x[rows] for x in self.inputs)
        target, valid, units = self.target[rows], self.valid[rows], places[self.units[rows]]
        return replace(self, inputs=inputs, target=target, valid=valid, units=units, num_units=len(chosen)), rows

    def without(self, rows: Tensor) -> Batch:
        """This batch with synthetic values, marked invalid, in the rows where the mask `rows` is True."""
        synthetic = self.synthetic()
        pairs = zip(self.inputs, synthetic.inputs, strict=True)
        inputs = (torch.where(_along(rows, x), other, x) for x, other in pairs)
        target = torch.where(_along(rows, self.target), synthetic.target, self.target)
        return replace(self, inputs=tuple(inputs), target=target, valid=self.valid & ~rows)

    def synthetic_row(self) -> tuple[Tensor, ...]:
        """The inputs of one row with synthetic values."""
        return self.take(slice(0, 1)).synthetic().inputs

    def synthetic(self) -> Batch:
        """This batch with synthetic values in all rows."""
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
    buckets: Buckets | None = None
    loading: Loading = field(default_factory=Loading)
    ahead: ReadAhead | None = field(default=None, repr=False, compare=False)

    @property
    def num_units(self) -> int:
        return len(self.rows) if self.owners is None else len(self.owners.counts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the inputs, if rows are dictionaries: the arguments of the model's `forward` that get them."""
        return self.rows.names

    @property
    def unit(self) -> Unit:
        """The kind of privacy unit: an example, or a user with all of their rows."""
        return Unit.EXAMPLE if self.owners is None else Unit.USER

    @property
    def rows_per_unit(self) -> int:
        """The public bound on the number of rows of one unit."""
        return 1 if self.owners is None else self.owners.rows_per_user

    def gather(self, indices: Tensor, at: ReadAt | None = None) -> Batch:
        """The rows of the units `indices` (distinct), finite and in the public range. No units give an empty batch.

        Rows that draw randomness while they are read draw from the address `at`, so that the step can be repeated.
        """
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise UsageError(f"indices must be int64 and 1-D, got {indices.dtype} of shape {tuple(indices.shape)}.")
        in_order = indices if bool((indices.diff() > 0).all()) else indices.sort().values  # as samplers give them
        if len(in_order) and not (in_order[0] >= 0 and in_order[-1] < self.num_units):
            raise UsageError(f"indices must be in 0..{self.num_units - 1}.")
        if in_order is not indices and bool((in_order.diff() == 0).any()):
            # A unit that joins twice has twice the sensitivity.
            raise UsageError(f"a unit joins a batch at most once, got {len(indices)} indices with repetitions.")
        rows, units = self._rows_of(indices)
        taken, usable = self.rows.take(rows, at) if self.ahead is None else self.ahead.take(rows, at)
        *inputs, target = (self._arriving(x, last) for x, last in _mark_last(taken))
        finite = [_finite_rows(x).to(target.device) for x in (*inputs, target) if x.is_floating_point()]
        valid = torch.stack([usable.to(target.device), *finite]).all(dim=0)
        invalid = (~valid).nonzero()[:, 0]
        inputs = [self._clamp_(x) for x in inputs]
        for x in (*inputs, target) if len(invalid) else ():
            x.index_fill_(0, invalid, 0)
        return Batch(tuple(inputs), target, valid, units.to(valid.device), len(indices), self.names)

    def units_by_length(self, batch: Batch) -> list[tuple[int, Tensor]]:
        """The units of a batch by the bucket that holds all rows of the unit; one empty part if there are no units."""
        assert self.buckets is not None
        lengths = real_lengths(batch.inputs[self.names.index(self.buckets.mask)])
        longest = lengths.new_zeros(batch.num_units).scatter_reduce(0, batch.units, lengths, "amax")
        buckets = self.buckets.of_lengths(longest)
        parts = [(length, (buckets == place).nonzero()[:, 0]) for place, length in enumerate(self.buckets.lengths)]
        return [part for part in parts if len(part[1])] or parts[:1]

    def cut(self, batch: Batch, length: int) -> Batch:
        """The batch with its sequences cut to the length of a bucket. Without buckets, the batch itself."""
        if self.buckets is None or length == self.buckets.longest:
            return batch
        named = zip(batch.inputs, batch.names, strict=True)
        inputs = tuple(self.buckets.cut(x, name, length) for x, name in named)
        return replace(batch, inputs=inputs, target=self.buckets.cut(batch.target, self.rows.target_name, length))

    def gather_each(self, parts: Sequence[Tensor], at: ReadAt | None = None) -> Iterator[Batch]:
        """Gathers the units of each part. If there are workers, they read later parts meanwhile."""
        validate.instance((tuple, list), parts=parts)
        reading = self.read_ahead(((part, at) for part in parts), requests_per_step=1)
        for part in parts:
            yield reading.gather(part, at)

    def read_ahead(self, gathered: Iterator[tuple[Tensor, ReadAt | None]], *, requests_per_step: int) -> Records:
        """These records, which read the rows of later micro-batches while the caller computes, if there are workers.

        `gathered` are the arguments of the calls of `gather` that follow, in order. It is read in advance.
        """
        if self.loading.num_workers == 0:
            return self
        requests = ((self._rows_of(units)[0], at) for units, at in gathered)
        return replace(self, ahead=ReadAhead(self.rows, self.loading, requests, requests_per_step))

    def fingerprint(self, secret: bytes) -> str:
        """A keyed hash by which a resumed run recognizes its data. `rows.hashed` says which rows it covers."""
        named = [(self.names, self.buckets)] if self.names else []
        described = (len(self.rows), self.input_range, self.dtype, *named)
        digest = hashlib.blake2b(repr(described).encode(), key=secret)
        owners = () if self.owners is None else (self.owners.order, self.owners.starts, self.owners.counts)
        for tensor in owners:
            hash_tensor(digest, tensor)
        self.rows.hash_into(digest, ReadAt(Stream(secret), 0))
        return digest.hexdigest()

    def check_repeatable(self) -> None:
        """Refuses data whose rows change from one reading to the next, for runs that may be stopped and resumed.

        A step that was begun before the stop is repeated with the same noise. On other rows, the difference of the two
        releases would be free of noise. The check reads some rows twice. Rows that draw from the global generators of
        torch, numpy or random are equal both times, because these are seeded for each row of each step.
        """
        if not self.rows.are_repeatable(ReadAt(Stream(_REPEATED), 0)):
            raise UsageError(
                "rows of the dataset differ when they are read twice, so a step could not be repeated after a stop: "
                "augment by views=Views(...), or draw from the global generator of torch, numpy or Python, not from "
                "one of your own."
            )

    def template(self, num_rows: int) -> Batch:
        """Synthetic rows of the public shape, one per unit, to probe a model without touching data.

        Floating-point inputs are normal (uniform on `input_range` if there is one), floating-point targets are uniform
        on [0, 1), integers are 0 or 1. Values are equal at every call.
        """
        generator = torch.Generator().manual_seed(_TEMPLATE_SEED)
        *inputs, target = (self._arriving(x, last) for x, last in _mark_last(self.rows.empty()))
        low, high = self.input_range or (0.0, 0.0)
        drawn = tuple(_synthetic(x, num_rows, generator, low, high) for x in inputs)
        labels = _synthetic(target, num_rows, generator, 0.0, 1.0)
        units = torch.arange(num_rows)
        return Batch(drawn, labels, torch.ones(num_rows, dtype=torch.bool), units, num_rows, self.names)

    def with_rows(self, inputs: Sequence[Tensor], target: Tensor) -> Records:
        """Records of other rows in memory, one per unit, with the input names and the dtype of these."""
        validate.instance((tuple, list), inputs=inputs)
        if not self.names:
            return as_records((*inputs, target), dtype=self.dtype)
        name = self.rows.target_name
        rows = {**dict(zip(self.names, inputs, strict=True)), name: target}
        return as_records(rows, inputs=self.names, target=name, buckets=self.buckets, dtype=self.dtype)

    def _rows_of(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of `units`, and for each row the position of its unit."""
        return (units, torch.arange(len(units))) if self.owners is None else self.owners.rows_of(units)

    def _arriving(self, tensor: Tensor, is_target: bool) -> Tensor:
        """Converts to the dtype that the model gets: `dtype` for floats and images, int64 for labels. Ids are kept."""
        if tensor.is_floating_point() or (tensor.dtype == torch.uint8 and not is_target):
            return tensor.to(self.dtype)
        return tensor.to(torch.int64) if is_target else tensor

    def _clamp_(self, tensor: Tensor) -> Tensor:
        if self.input_range is None or not tensor.is_floating_point():
            return tensor
        return tensor.clamp_(*self.input_range)


Data: TypeAlias = RawData | Records
"""What may be trained on: see `as_records`."""


def as_records(
    data: Data,
    *,
    inputs: Sequence[str] | None = None,
    target: str | None = None,
    buckets: Buckets | None = None,
    input_range: tuple[float, float] | None = None,
    allow_single: bool = False,
    dtype: torch.dtype = torch.float32,
    loading: Loading | None = None,
) -> Records:
    """Makes `Records` in which each row is a privacy unit.

    `data` is (inputs..., target) as tensors or arrays, a dictionary of them, or a map-style `Dataset` of such rows: one
    of torch, a `datasets.Dataset`, or a list. Memory maps are not copied. `loading` says how rows of a dataset are
    read, as by worker processes. From a `DataLoader`, the dataset and the settings of loading are taken.
    Values of a dictionary are passed to the model by name: those of the keys `inputs` (by default all but the target).
    The `target` (by default the key "labels" or "label") goes to the loss. With `buckets`, sequences of different
    lengths are padded to public ones. Floating-point inputs and uint8 images are converted to `dtype` and clamped to
    the public `input_range`. Other integers are unchanged.

    >>> rows = {"input_ids": np.zeros((10, 4), dtype=int), "labels": np.zeros(10, dtype=int)}
    >>> as_records(rows).names
    ('input_ids',)

    >>> as_records((np.zeros((10, 3)), np.zeros(9, dtype=int)))
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: parts of the data differ in length: inputs 10, targets 9.
    """
    if input_range is not None:
        validate.interval(-3e38, 3e38, input_range=input_range)
    if dtype not in (torch.float32, torch.float64):
        raise UsageError(f"dtype must be torch.float32 or torch.float64, got {validate.shown(dtype)}.")
    if isinstance(data, Records):
        if any(given is not None for given in (inputs, target, buckets, loading)):
            raise UsageError(
                "inputs=, target=, buckets= and loading= say how to read rows, got Records: say it when making these."
            )
        return data if input_range is None else replace(data, input_range=input_range)
    validate.instance((Buckets, type(None)), buckets=buckets)
    validate.instance((Loading, type(None)), loading=loading)
    if isinstance(data, DataLoader):
        refuse_other_forms(data.dataset)
        loading, data = loading or Loading.of(data), data.dataset
    loading = loading or Loading()
    rows = as_rows(data, inputs=inputs, target=target, buckets=buckets, collate=loading.collate_fn)
    if isinstance(rows, InMemory):  # there is nothing to read
        loading = Loading()
    records = Records(rows, None, input_range, dtype, buckets, loading)
    if buckets is not None and buckets.mask not in records.names:
        raise UsageError(f"the mask {buckets.mask!r} of buckets must be among the inputs of the data.")
    _refuse_too_few(records, allow_single)
    return records


def by_user(
    data: Data,
    owners: Tensor | NDArray[Any],
    *,
    rows_per_user: int,
    inputs: Sequence[str] | None = None,
    target: str | None = None,
    buckets: Buckets | None = None,
    input_range: tuple[float, float] | None = None,
    allow_single: bool = False,
    dtype: torch.dtype = torch.float32,
    loading: Loading | None = None,
) -> Records:
    """Makes `Records` in which each user is a privacy unit.

    Row `r` belongs to user `owners[r]`, and the gradients of a user's rows are summed before the clip. The first
    `rows_per_user` rows of each user are kept. Without this bound, one user could fill a batch.

    >>> users = by_user((torch.zeros(4, 3), torch.zeros(4)), torch.tensor([7, 8, 7, 7]), rows_per_user=2)
    >>> users.num_units, users.gather(torch.tensor([0])).units
    (2, tensor([0, 0]))
    """
    validate.count(rows_per_user=rows_per_user)
    records = as_records(
        data,
        inputs=inputs,
        target=target,
        buckets=buckets,
        input_range=input_range,
        allow_single=True,
        dtype=dtype,
        loading=loading,
    )
    ids = owners if isinstance(owners, Tensor) else as_tensor(owners, "owners")
    num_rows = len(records.rows)
    if ids.is_floating_point() or ids.dtype == torch.bool or ids.shape != (num_rows,):
        found = f"{ids.dtype} of shape {tuple(ids.shape)}"
        raise DataError(f"owners must be one integer for each of the {num_rows} rows, got {found}.")
    records = replace(records, owners=Owners.of(ids.cpu(), rows_per_user))
    _refuse_too_few(records, allow_single)
    return records


@dataclass(frozen=True)
class Owners:
    """Index of the rows of each user: `order[starts[u] : starts[u] + counts[u]]`, in the order of the data."""

    order: Tensor
    starts: Tensor
    counts: Tensor
    rows_per_user: int

    @classmethod
    def of(cls, ids: Tensor, rows_per_user: int) -> Owners:
        """Makes the index. Users are numbered by sorted id; rows after a user's first `rows_per_user` are left out."""
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
        raise DataError("the dataset is empty.")
    if records.num_units == 1 and not allow_single:
        raise DataError(f"the dataset has a single {records.unit}: use more data, or pass allow_single=True.")


def _mark_last(tensors: tuple[Tensor, ...]) -> list[tuple[Tensor, bool]]:
    return [(x, position == len(tensors) - 1) for position, x in enumerate(tensors)]


def _finite_rows(tensor: Tensor) -> Tensor:
    """Whether all values of each row are finite. True for a row without values."""
    rows = tensor.reshape(len(tensor), tensor[:1].numel() if len(tensor) else 1)
    finite = rows.sum(dim=1).isfinite()  # one pass: a sum with a value that is not finite is not finite
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
