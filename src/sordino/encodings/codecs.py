"""What codecs of several encodings share: masks, and contributions of which each is mapped on its own.

Guarantee (Theorem 3.1 of Zhu and Blaschko 2023): the masked sum with noise on all coordinates is a Gaussian release of
the same bound, and dropping coordinates from a release is post-processing. So a mask that no private row decided leaves
the event as it is, whatever its rate.
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
    """Keeps the coordinates where `keep`, shape (d,), is True. The others add nothing, and get no noise.

    `learn` makes the next state from the release before the mask: with the noise that fell on the other coordinates,
    because zeros in its place would look like gradients that are exactly known.

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
    """Rows of `each` under `mapped`, a few at a time, as vectors of `layout`. Norms are those of the rows as formed.

    The norm of a residual would follow from two others by Pythagoras, and be wrong where they nearly cancel: the clip
    would rest on it.

    >>> each = Dense(torch.tensor([[3.0, -4.0]]), Layout(("w",), ((2,),)))
    >>> MappedContributions(each, each.layout, torch.abs).weighted_sum(torch.ones(1))
    tensor([3., 4.], dtype=torch.float64)
    """

    each: PerExample
    layout: Layout
    mapped: Callable[[Tensor], Tensor]  # of rows (b, d), each row from itself alone

    def squared_norms(self) -> Tensor:
        return torch.cat([part.squared_norms() for part in self._parts()])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total, done = torch.zeros(self.layout.size, dtype=torch.float64, device=weights.device), 0
        for part in self._parts():
            total += part.weighted_sum(weights[done : done + len(part.matrix)])
            done += len(part.matrix)
        return total

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        total, weights = torch.zeros(self.layout.size, dtype=torch.float64), []
        for part in self._parts():
            added, given = part.sum_weighted_by(weights_of, bound)
            total = total.to(added.device).add_(added)
            weights.append(by_block(given, self.layout))
        return total, torch.cat(weights)

    def masked(self, keep: Tensor) -> Dense:
        return Dense(torch.cat(list(self.rows(_ROWS_AT_A_TIME))), self.layout).masked(keep)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for rows in self.each.rows(chunk):
            yield self.mapped(rows)

    def _parts(self) -> Iterator[Dense]:
        for rows in self.rows(_ROWS_AT_A_TIME):
            yield Dense(rows, self.layout)
