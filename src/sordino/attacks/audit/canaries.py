"""Canaries in gradient space: each adds a vector of its own to the steps that it joins, as long as the clip allows.

Their supports are disjoint. So they are orthogonal, exactly and after every mask, no canary disturbs another, and all
of them together take as much memory as one gradient: coordinate j belongs to one canary, and has one sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sordino._input import validate
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, WeightsOf, by_block


@dataclass(frozen=True, repr=False)
class Disjoint:
    """Contributions with disjoint supports: coordinate `d` is that of unit `owner[d]`, or of nobody where that is -1.

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
        sums = torch.zeros((self.units + 1) * blocks, dtype=torch.float64)  # the last is nobody's
        sums.index_add_(0, self._place, self.values.double().square())
        return sums.reshape(-1, blocks)[: self.units]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        nobody = torch.zeros(1, len(self.layout.sizes), dtype=torch.float64)
        spread = torch.cat([by_block(weights, self.layout).double(), nobody]).reshape(-1)
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
        """Of each coordinate in a table of units and blocks."""
        blocks = torch.arange(len(self.layout.sizes)).repeat_interleave(torch.tensor(self.layout.sizes))
        return torch.where(self.owner >= 0, self.owner, self.units) * len(self.layout.sizes) + blocks


@dataclass(frozen=True, repr=False)
class GradientCanaries:
    """So many canaries, each with random signs on as many random coordinates as there are for it."""

    everybody: Disjoint

    @classmethod
    def drawn(cls, layout: Layout, number: int, length: float, randomness: Stream) -> GradientCanaries:
        """Each of Euclidean length `length`: longer than the clip, so that what is left of it by a mask is clipped too.

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
        """What the canaries `joined` add, in this order."""
        place = torch.full((self.everybody.units + 1,), -1).index_copy(0, joined, torch.arange(len(joined)))
        return Disjoint(self.everybody.values, place[self.everybody.owner], len(joined), self.everybody.layout)

    def by_canary(self, values: Tensor) -> Tensor:
        """Sums of a value per coordinate over the support of each canary."""
        sums = torch.zeros(self.everybody.units + 1, dtype=torch.float64)
        nobody = torch.where(self.everybody.owner >= 0, self.everybody.owner, self.everybody.units)
        return sums.index_add_(0, nobody, values.double())[: self.everybody.units]
