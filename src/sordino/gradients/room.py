"""Gradients of a few units by all parameters that have to be formed, side by side in one matrix.

Its norms are one operation and its weighted sum another, where there would be two for each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sordino.gradients.blocks import Block

_PIECE = 1 << 10  # a parameter has whole pieces of columns, and a norm in float32 of so few numbers is exact enough


@dataclass(frozen=True, repr=False)
class Room:
    """Memory that is used again for each few units: asked for anew, it would have to be fetched page by page."""

    blocks: tuple[Block, ...]
    columns: tuple[slice, ...]
    matrix: Tensor
    total: Tensor
    owners: Tensor

    @classmethod
    def of(cls, blocks: Sequence[Block], units: int, like: Tensor) -> Room:
        """For the gradients of up to `units` units by `blocks`."""
        pieces = [-(-block.size // _PIECE) for block in blocks]
        starts = [_PIECE * start for start in accumulate(pieces, initial=0)]
        matrix, total = like.new_empty(units, starts[-1]), like.new_zeros(starts[-1])
        columns = tuple(slice(start, start + block.size) for start, block in zip(starts, blocks, strict=False))
        for own, (_, end) in zip(columns, pairwise(starts), strict=True):
            matrix[:, own.stop : end].zero_()
        owners = torch.eye(len(blocks), dtype=torch.float64, device=like.device)
        return cls(
            tuple(blocks),
            columns,
            matrix,
            total,
            owners.repeat_interleave(torch.tensor(pieces, dtype=torch.int64, device=like.device), dim=0),
        )

    def form(self, units: slice) -> Tensor:
        """The gradients of some units, a row each. They hold until the next are formed."""
        formed = self.matrix[: units.stop - units.start]
        for block, own in zip(self.blocks, self.columns, strict=True):
            block.take(units).form_into(formed[:, own])
        return formed

    def squared_norms(self, formed: Tensor) -> Tensor:
        """Float64, one column per block. A number that is not finite spoils all norms of its unit, which is absent."""
        pieces = formed.view(len(formed), len(self.owners), _PIECE)
        squares: Tensor = torch.linalg.vector_norm(pieces, dim=2).double().square_()
        return squares @ self.owners

    def add(self, formed: Tensor, weights: Tensor) -> None:
        """Adds the weighted sum of the units. `weights` is one per unit, or one per unit and block."""
        weights = weights.to(formed.dtype)
        if weights.ndim == 1:
            self.total.addmv_(formed.T, weights)
            return
        for own, weight in zip(self.columns, weights.T.contiguous(), strict=True):
            self.total[own].addmv_(formed[:, own].T, weight)

    def sums(self) -> list[Tensor]:
        """What was added, by block, in the order of the parameter."""
        return [block.in_order(self.total[own]) for block, own in zip(self.blocks, self.columns, strict=True)]
