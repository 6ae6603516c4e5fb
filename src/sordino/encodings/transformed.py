"""Contributions of which each is mapped on its own: what a codec that is no mask encodes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.kernel.states import Dense, Layout, PerExample, WeightsOf, by_block

_ROWS_AT_A_TIME = 32


@dataclass(frozen=True, repr=False)
class Transformed:
    """Rows of `each` under `mapped`, a few at a time, as vectors of `layout`. Norms are those of the rows as formed.

    The norm of a residual would follow from two others by Pythagoras, and be wrong where they nearly cancel: the clip
    would rest on it.

    >>> each = Dense(torch.tensor([[3.0, -4.0]]), Layout(("w",), ((2,),)))
    >>> Transformed(each, each.layout, torch.abs).weighted_sum(torch.ones(1))
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
