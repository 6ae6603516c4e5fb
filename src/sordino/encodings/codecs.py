"""Codecs that several encodings share: masks, and maps that are applied to each contribution on its own.

Guarantee (Theorem 3.1 of Zhu and Blaschko 2023): the masked sum with noise on all coordinates is a Gaussian release of
the same bound, and dropping coordinates from a release is post-processing. So a mask that does not depend on private
rows leaves the event unchanged at any rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from sordino.kernel.encoding import State, check_coordinates
from sordino.kernel.states import Dense, Layout, PerExample, Private, WeightsOf, by_block

Learn: TypeAlias = Callable[[Private], State]  # the next state, from a release that a codec decodes
_ROWS_AT_A_TIME = 32


@dataclass(frozen=True, repr=False)
class MaskCodec:
    """Keeps the coordinates where `keep`, shape (d,), is True. The others are zero and get no noise.

    `learn` computes the next state from the release before masking, which has noise on the masked coordinates too:
    zeros there would look like gradients that are known exactly.

    >>> codec = MaskCodec(torch.tensor([True, False]), learn=lambda released: {"sum": released.value})
    >>> gradient, state = codec.decode(Private(torch.tensor([3.0, 4.0]), Layout(("w",), ((2,),))))
    >>> gradient.value, state["sum"]
    (tensor([3., 0.]), tensor([3., 4.]))
    """

    keep: Tensor
    learn: Learn

    @cached_property
    def keeps_all(self) -> bool:
        return bool(self.keep.all())

    def encode(self, each: PerExample) -> PerExample:
        check_coordinates("a mask", self.keep.numel(), each.layout)
        return each if self.keeps_all else each.masked(self.keep)

    def decode(self, released: Private) -> tuple[Private, State]:
        state = self.learn(released)
        if self.keeps_all:
            return released, state
        noise_square = released.noise_square * self.keep.double()
        return released.lift(lambda value: value.where(self.keep, 0.0), noise_square=noise_square), state

    def without_masks(self, released: Private) -> Private:
        return released


@dataclass(frozen=True, repr=False)
class MappedContributions:
    """The rows of `each` mapped by `mapped` to vectors of `layout`, a few rows at a time.

    Norms are computed from the mapped rows themselves. Pythagoras would give the norm of a residual from two other
    norms, but with a large error where these nearly cancel, and the clip relies on it.

    >>> each = Dense(torch.tensor([[3.0, -4.0]]), Layout(("w",), ((2,),)))
    >>> MappedContributions(each, each.layout, torch.abs).weighted_sum(torch.ones(1))
    tensor([3., 4.], dtype=torch.float64)
    """

    each: PerExample
    layout: Layout
    mapped: Callable[[Tensor], Tensor]  # rows (b, d) -> (b, layout.size); must map each row on its own

    def squared_norms(self) -> Tensor:
        return torch.cat([part.squared_norms() for part in self._parts()])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total, start = torch.zeros(self.layout.size, dtype=torch.float64, device=weights.device), 0
        for part in self._parts():
            total += part.weighted_sum(weights[start : start + len(part.matrix)])
            start += len(part.matrix)
        return total

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        total, weights = torch.zeros(self.layout.size, dtype=torch.float64), []
        for part in self._parts():
            part_sum, part_weights = part.sum_weighted_by(weights_of, bound)
            total = total.to(part_sum.device).add_(part_sum)
            weights.append(by_block(part_weights, self.layout))
        return total, torch.cat(weights)

    def masked(self, keep: Tensor) -> Dense:
        return Dense(torch.cat(list(self.rows(_ROWS_AT_A_TIME))), self.layout).masked(keep)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for rows in self.each.rows(chunk):
            yield self.mapped(rows)

    def _parts(self) -> Iterator[Dense]:
        for rows in self.rows(_ROWS_AT_A_TIME):
            yield Dense(rows, self.layout)
