"""Gradients of examples as a tape holds them: norms and sums without a matrix of gradients, wherever shapes allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from sordino.gradients.blocks import Block, Instantiated, Several, places_of, weight_block
from sordino.gradients.surroundings import in_full_precision
from sordino.gradients.tape import Tape
from sordino.states import Layout, WeightsOf, by_block

# What is formed at a time: so many numbers, or of large gradients those of a few units, as long as a cache holds them.
_NUMBERS_AT_A_TIME, _NUMBERS_IN_CACHE, _FEW_UNITS = 1 << 20, 1 << 22, 8


@dataclass(frozen=True, repr=False)
class Taped:
    """One block per parameter, in the order of the layout, with a row per privacy unit.

    Guarantee: row `b` of everything here is a function of the rows of the tape that belong to unit `b`.
    """

    blocks: tuple[Block, ...]
    num_units: int
    layout: Layout
    like: Tensor

    @classmethod
    @in_full_precision
    def of(cls, tape: Tape, counted: Tensor, rows_of_units: list[int], layout: Layout) -> Taped:
        """The gradients of units with `rows_of_units` rows each, in order. Rows that do not count are exact zeros."""
        found: dict[str, list[Block]] = {name: [] for name in tape.names}
        for use, saved, gradient in zip(tape.uses, tape.saved, tape.output_gradients, strict=True):
            blocks = use.rule.blocks(saved, _counted(gradient, counted))
            for name, block in zip(use.rule.names, blocks, strict=True):
                if name is not None and block is not None:
                    found[name].append(block)
        for name, gradient in tape.direct.items():
            found[name].append(Instantiated(_counted(gradient.reshape(len(counted), -1), counted)))
        each = tuple(_together(uses) for uses in found.values())
        if any(rows != 1 for rows in rows_of_units):
            starts = tuple(accumulate(rows_of_units, initial=0))
            each = tuple(block.of_units(starts) for block in each)
        return cls(each, len(rows_of_units), layout, tape.usable.new_zeros((), dtype=tape.dtype))

    @in_full_precision
    def squared_norms(self) -> Tensor:
        taken = ([block.take(units).squared_norms() for block in self.blocks] for units in self._chunks())
        return torch.cat([torch.stack(squares, dim=1) for squares in taken])

    @in_full_precision
    def weighted_sum(self, weights: Tensor) -> Tensor:
        weights, total = by_block(weights, self.layout).to(self.like.dtype), self._zeros()
        for p, block in enumerate(self.blocks):
            block.add_to(total.parts[p], weights[:, p])
        return total.flat.double()

    @in_full_precision
    def sum_weighted_by(self, weights_of: WeightsOf) -> tuple[Tensor, Tensor]:
        """What has to be formed is formed once, for a few units at a time, and stays in cache until it is summed."""
        total = self._zeros()
        ready = {p: block for p, block in enumerate(self.blocks) if not block.is_formed_later}
        squares = torch.empty(self.num_units, len(self.blocks), dtype=torch.float64, device=self.like.device)
        for p, block in ready.items():
            squares[:, p] = block.squared_norms()
        later = {p: block for p, block in enumerate(self.blocks) if block.is_formed_later}
        # One room for all chunks and blocks: memory asked for anew would have to be fetched page by page each time.
        units_at_a_time, weights, formed = self._units_at_a_time(), [], dict[int, Block]()
        sizes = [units_at_a_time * block.size for block in later.values()]
        rooms = dict(zip(later, torch.split(self.like.new_empty(sum(sizes)), sizes), strict=True))
        for units in self._chunks():
            formed = {}
            for p, block in later.items():
                taken = len(squares[units]) * block.size
                formed[p] = block.take(units).formed(rooms[p][:taken])
                squares[units, p] = formed[p].squared_norms()
            weights.append(by_block(weights_of(squares[units]), self.layout))
            of_blocks = self._for_each_block(weights[-1])
            for p, block in formed.items():
                block.add_as_held(total.parts[p], of_blocks[p])
        for p, block in formed.items():
            total.parts[p].copy_(block.in_order(total.parts[p]))
        all_weights = torch.cat(weights)
        of_blocks = self._for_each_block(all_weights)
        for p, block in ready.items():
            block.add_to(total.parts[p], of_blocks[p])
        return total.flat, all_weights

    def _for_each_block(self, weights: Tensor) -> Tensor:
        return weights.to(self.like.dtype).T.contiguous()

    def masked(self, keep: Tensor) -> Taped:
        parts = torch.split(keep, list(self.layout.sizes))
        blocks = tuple(block.masked(part) for block, part in zip(self.blocks, parts, strict=True))
        return replace(self, blocks=blocks)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for start in range(0, self.num_units, chunk):
            yield torch.cat([block.take(slice(start, start + chunk)).dense() for block in self.blocks], dim=1)

    def _chunks(self) -> Iterator[slice]:
        chunk = self._units_at_a_time()
        for start in range(0, self.num_units, chunk):
            yield slice(start, start + chunk)

    def _units_at_a_time(self) -> int:
        """As many as have their gradients in cache, and the same number for each thread.

        Fewer would have more calls of small products; more would take memory, and no less time.
        """
        numbers = sum(block.numbers_formed for block in self.blocks if block.is_formed_later)
        if not numbers:
            return self.num_units
        units = max(_NUMBERS_AT_A_TIME / numbers, min(_FEW_UNITS, _NUMBERS_IN_CACHE / numbers))
        threads = torch.get_num_threads()
        return min(self.num_units, threads * max(1, round(units / threads)))

    def _zeros(self) -> _Total:
        flat = self.like.new_zeros(self.layout.size)
        return _Total(flat, torch.split(flat, list(self.layout.sizes)))


class _Total(NamedTuple):
    """A sum over all coordinates, and its parts by parameter, which are views."""

    flat: Tensor
    parts: tuple[Tensor, ...]


def _together(uses: list[Block]) -> Block:
    """What a parameter that is used several times gets: products over more places, or else a sum of matrices."""
    if len(uses) == 1:
        return uses[0]
    places = [found for found in map(places_of, uses) if found is not None]
    if len(places) == len(uses):
        return weight_block(*(torch.cat(side, dim=1) for side in zip(*places, strict=True)))
    return Several(tuple(uses))


def _counted(gradients: Tensor, counted: Tensor) -> Tensor:
    if bool(counted.all()):
        return gradients
    return torch.where(counted.reshape(-1, *[1] * (gradients.ndim - 1)), gradients, gradients.new_zeros(()))
