"""Canaries: privacy units added to a dataset, each included or left out by the toss of a fair coin.

Every canary takes a place behind the last unit of the records, whether it is included or not. The coins are tossed
before training, from a stream of their own, so that they are independent of all randomness of training.

A canary in gradient space contributes a vector of its own, clipped, to each step that draws it. The supports of these
vectors are disjoint. So canaries are exactly orthogonal, also under every mask, none of them disturbs another, and
together they take the memory of a single gradient: coordinate j belongs to one canary and has one sign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino._input import validate
from sordino.errors import DataError
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Owners, Records
from sordino.kernel.rows import ReadAt, Rows, hash_tensor
from sordino.kernel.states import Layout, WeightsOf, by_block


@dataclass(frozen=True, repr=False)
class Disjoint:
    """Contributions with disjoint supports: coordinate `d` belongs to unit `owner[d]`, or to none where that is -1.

    >>> each = Disjoint(torch.tensor([3.0, 5.0, 4.0]), torch.tensor([0, 1, 0]), 2, Layout(("w",), ((3,),)))
    >>> each.squared_norms().squeeze(1), each.weighted_sum(torch.tensor([1.0, 0.5]))
    (tensor([25., 25.], dtype=torch.float64), tensor([3.0000, 2.5000, 4.0000], dtype=torch.float64))
    """

    values: Tensor
    owner: Tensor
    units: int
    layout: Layout

    def squared_norms(self) -> Tensor:
        blocks = len(self.layout.sizes)
        sums = torch.zeros((self.units + 1) * blocks, dtype=torch.float64)  # the last unit stands for no owner
        sums.index_add_(0, self._place, self.values.double().square())
        return sums.reshape(-1, blocks)[: self.units]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        no_owner = torch.zeros(1, len(self.layout.sizes), dtype=torch.float64)
        spread = torch.cat([by_block(weights, self.layout).double(), no_owner]).reshape(-1)
        return self.values.double() * spread[self._place]

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        weights = by_block(weights_of(self.squared_norms()), self.layout)
        return self.weighted_sum(weights), weights

    def masked(self, keep: Tensor) -> Disjoint:
        return Disjoint(self.values.where(keep, 0.0), self.owner, self.units, self.layout)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for some in torch.split(torch.arange(self.units), chunk):
            yield torch.where(self.owner == some[:, None], self.values, 0.0)

    @cached_property
    def _place(self) -> Tensor:
        """The index of each coordinate in the flattened table of units and blocks."""
        blocks = torch.arange(len(self.layout.sizes)).repeat_interleave(torch.tensor(self.layout.sizes))
        return torch.where(self.owner >= 0, self.owner, self.units) * len(self.layout.sizes) + blocks


@dataclass(frozen=True, repr=False)
class GradientCanaries:
    """Canaries in gradient space. Each has random signs on an equal number of random coordinates of its own."""

    everybody: Disjoint

    @classmethod
    def drawn(cls, layout: Layout, number: int, length: float, randomness: Stream) -> GradientCanaries:
        """Draws `number` canaries of L2 norm `length`.

        Take `length` far above the clipping norm, so that what a mask leaves of a canary is clipped too.

        >>> from sordino.kernel.randomness import Key
        >>> stream = Key.from_seed(0).stream("canaries")
        >>> canaries = GradientCanaries.drawn(Layout(("w",), ((10,),)), 3, 6.0, stream)
        >>> canaries.everybody.squared_norms().squeeze(1).round(decimals=6)
        tensor([36., 36., 36.], dtype=torch.float64)
        """
        validate.count(at_most=layout.size, canaries=number)
        each = layout.size // number
        order = torch.from_numpy(randomness.permutation(layout.size, step=0))
        owner = torch.full((layout.size,), -1).index_copy(
            0, order[: each * number], torch.arange(each * number) % number
        )
        signs = torch.from_numpy(randomness.uniforms(layout.size, step=1) < 0.5).double() * 2 - 1
        values = torch.where(owner >= 0, signs * (length / each**0.5), 0.0)
        return cls(Disjoint(values, owner, number, layout))

    def of(self, joined: Tensor) -> Disjoint:
        """The contributions of the canaries `joined`, in this order."""
        place = torch.full((self.everybody.units + 1,), -1).index_copy(0, joined, torch.arange(len(joined)))
        return Disjoint(self.everybody.values, place[self.everybody.owner], len(joined), self.everybody.layout)

    def by_canary(self, values: Tensor) -> Tensor:
        """Sums `values`, one per coordinate, over the support of each canary."""
        sums = torch.zeros(self.everybody.units + 1, dtype=torch.float64)
        place = torch.where(self.everybody.owner >= 0, self.everybody.owner, self.everybody.units)
        return sums.index_add_(0, place, values.double())[: self.everybody.units]


@dataclass(frozen=True)
class _ExtendedRows:
    """Rows of a dataset, with the rows `more` after the last of them."""

    rows: Rows
    more: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.rows) + len(self.more[-1])

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        own, others = indices < len(self.rows), indices >= len(self.rows)
        taken, taken_usable = self.rows.take(indices[own], at)
        usable = torch.ones(len(indices), dtype=torch.bool)
        usable[own] = taken_usable
        columns = []
        for first, second in zip(taken, self.more, strict=True):
            column = first.new_empty((len(indices), *first.shape[1:]))
            column[own], column[others] = first, second[indices[others] - len(self.rows)]
            columns.append(column)
        return tuple(columns), usable

    def empty(self) -> tuple[Tensor, ...]:
        return self.rows.empty()

    def hash_into(self, digest: hashlib.blake2b, at: ReadAt) -> None:
        self.rows.hash_into(digest, at)
        for column in self.more:
            hash_tensor(digest, column)

    def are_repeatable(self, at: ReadAt) -> bool:
        return self.rows.are_repeatable(at)

    @property
    def names(self) -> tuple[str, ...]:
        return self.rows.names

    @property
    def target_name(self) -> str:
        return self.rows.target_name

    @property
    def hashed(self) -> str:
        return self.rows.hashed


def followed_by(records: Records, more: tuple[Tensor, ...]) -> Records:
    """Appends one unit for each row of `more` (inputs..., target). Their indices come after those of `records`.

    >>> from sordino.kernel.records import as_records
    >>> records = as_records((torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)))
    >>> longer = followed_by(records, (torch.ones(2, 2), torch.ones(2, dtype=torch.int64)))
    >>> longer.num_units, longer.gather(torch.tensor([0, 6])).target
    (7, tensor([0, 1]))
    """
    like = records.rows.empty()
    shapes, declared = [tuple(x.shape[1:]) for x in more], [tuple(x.shape[1:]) for x in like]
    if shapes != declared:
        raise DataError(f"canaries must have the shapes of the rows of the dataset, {declared}, got {shapes}.")
    typed = tuple(x.to(of.dtype) for x, of in zip(more, like, strict=True))
    number, owners = len(typed[-1]), records.owners
    if owners is not None:
        places = torch.arange(len(records.rows), len(records.rows) + number)
        starts = torch.cat([owners.starts, len(owners.order) + torch.arange(number)])
        counts = torch.cat([owners.counts, torch.ones(number, dtype=owners.counts.dtype)])
        owners = Owners(torch.cat([owners.order, places]), starts, counts, owners.rows_per_user)
    return replace(records, rows=_ExtendedRows(records.rows, typed), owners=owners)


def with_empty_places(records: Records, number: int) -> Records:
    """Appends `number` units whose rows hold zeros and are never read."""
    return followed_by(records, tuple(x.new_zeros((number, *x.shape[1:])) for x in records.rows.empty()))


def coins(canaries: int, key: Key) -> NDArray[np.bool_]:
    """One fair coin for each canary, from a random stream that is used for nothing else.

    >>> int(coins(1000, Key.from_seed(0)).sum())
    509
    """
    return key.stream("coins of canaries").uniforms(canaries, step=0) < 0.5
