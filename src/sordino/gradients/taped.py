"""Gradients of examples as a tape holds them: norms and sums without a matrix of gradients, wherever shapes allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.gradients.embedding import Scattered
from sordino.gradients.rules import Block, Instantiated, Outer
from sordino.gradients.surroundings import in_full_precision
from sordino.gradients.tape import Tape
from sordino.states import Layout

_NUMBERS_IN_CACHE, _FEWEST_ROWS = 1 << 22, 16


@dataclass(frozen=True, repr=False)
class Held:
    """Some rows, with one block per parameter: what is formed once serves the norms and the sum."""

    blocks: tuple[Block, ...]
    layout: Layout

    def parts(self) -> Iterator[Held]:
        yield self

    @in_full_precision
    def squared_norms(self) -> Tensor:
        return torch.stack([block.squared_norms() for block in self.blocks], dim=1)

    @in_full_precision
    def weighted_sum(self, weights: Tensor) -> Tensor:
        weights = weights if weights.ndim == 2 else weights[:, None].expand(-1, len(self.blocks))
        return torch.cat([block.weighted_sum(weights[:, p]) for p, block in enumerate(self.blocks)]).double()

    def rows(self, chunk: int) -> Iterator[Tensor]:
        yield from torch.split(torch.cat([block.dense() for block in self.blocks], dim=1), chunk)


@dataclass(frozen=True, repr=False)
class Taped:
    """All rows of a tape. Rows that do not count have gradients of exact zeros.

    Guarantee: row `r` of everything here is a function of row `r` of the tape.
    """

    tape: Tape
    counted: Tensor
    layout: Layout

    def parts(self) -> Iterator[Held]:
        """A few rows at a time, so that what has to be formed stays in cache; all at once if nothing has to be."""
        rows = len(self.counted)
        chunk = max(_FEWEST_ROWS, _NUMBERS_IN_CACHE // (1 + self._numbers_of_a_row()))
        for start in range(0, max(rows, 1), chunk):
            yield self._held(slice(start, start + chunk))

    def squared_norms(self) -> Tensor:
        return torch.cat([part.squared_norms() for part in self.parts()])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total, start = torch.zeros(self.layout.size, dtype=torch.float64, device=weights.device), 0
        for part in self.parts():
            stop = start + len(part.squared_norms())
            total, start = total + part.weighted_sum(weights[start:stop]), stop
        return total

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for start in range(0, len(self.counted), chunk):
            yield from self._held(slice(start, start + chunk)).rows(chunk)

    @in_full_precision
    def _held(self, rows: slice) -> Held:
        found: dict[str, list[Block]] = {name: [] for name in self.tape.names}
        for use, saved, gradient in zip(self.tape.uses, self.tape.saved, self.tape.output_gradients, strict=True):
            blocks = use.rule.blocks(saved[rows], self._counted(gradient[rows], rows))
            for name, block in zip(use.rule.names, blocks, strict=True):
                if name is not None and block is not None:
                    found[name].append(block)
        for name, gradients in self.tape.direct.items():
            found[name].append(Instantiated(self._counted(gradients[rows].reshape(len(self.counted[rows]), -1), rows)))
        return Held(tuple(_one(blocks) for blocks in found.values()), self.layout)

    def _counted(self, gradients: Tensor, rows: slice) -> Tensor:
        counted = self.counted[rows]
        if bool(counted.all()):
            return gradients
        return torch.where(counted.reshape(-1, *[1] * (gradients.ndim - 1)), gradients, gradients.new_zeros(()))

    def _numbers_of_a_row(self) -> int:
        """How many numbers the gradients of one row hold that have to be formed."""
        blocks = self._held(slice(0, 1)).blocks
        return sum(block.dense().numel() for block in blocks if not isinstance(block, (Outer, Scattered)))


def _one(blocks: list[Block]) -> Block:
    """A parameter that is used several times has the sum of what its uses add, which only a matrix can hold."""
    return blocks[0] if len(blocks) == 1 else Instantiated(torch.stack([block.dense() for block in blocks]).sum(dim=0))
