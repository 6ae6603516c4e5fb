"""Per-example gradients from a tape: norms and weighted sums, without a matrix of gradients where shapes allow it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from math import sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from sordino.gradients.blocks import Block, DenseBlock
from sordino.gradients.rounding import AT_ONCE, PLACES_ERROR, TOGETHER, groups, in_float64, zeros
from sordino.gradients.tape import Tape
from sordino.gradients.torch_state import in_full_precision
from sordino.gradients.view_blocks import merged
from sordino.gradients.views import Name, parameter_of
from sordino.kernel.states import Layout, WeightsOf, add_, by_block

# Gradients are formed for about so many values at a time. If gradients are large, a few units whose gradients a cache
# holds are formed together.
_VALUES_AT_A_TIME, _VALUES_IN_CACHE, _FEW_UNITS = 1 << 20, 1 << 22, 8


@dataclass(frozen=True, repr=False)
class TapedGradients:
    """The `PerExample` of a tape: one block per parameter, in the order of the layout, with one row per privacy unit.

    Guarantee: row `b` of each result is a function of the rows of the tape that belong to unit `b`.
    """

    blocks: tuple[Block, ...]
    num_units: int
    layout: Layout
    like: Tensor

    @classmethod
    @in_full_precision
    def of(cls, tape: Tape, counted: Tensor, rows_of_units: list[int], layout: Layout) -> TapedGradients:
        """The gradients of units with `rows_of_units` rows each, in order. Rows not `counted` are exact zeros."""
        blocks_of: dict[str, list[tuple[Name, Block]]] = {name: [] for name in tape.names}
        for use, saved, gradient in zip(tape.uses, tape.saved, tape.output_gradients, strict=True):
            blocks = use.rule.blocks(saved, _zeroed(gradient, counted))
            for name, block in zip(use.rule.names, blocks, strict=True):
                if name is not None and block is not None:
                    blocks_of[parameter_of(name)].append((name, block))
        for name, gradient in tape.direct.items():
            blocks_of[name].append((name, DenseBlock(_zeroed(gradient.reshape(len(counted), -1), counted))))
        like = tape.usable.new_zeros(len(counted), 0, dtype=tape.dtype)
        each = tuple(merged(uses, like) for uses in blocks_of.values())
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

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        """The weighted sum for weights that are a function of squared norms, and the weights. See `PerExample`.

        The sum is float32 for up to `AT_ONCE` units, otherwise float64. This is what a clip calls: norms, weights and
        sum in one call, so that gradients which must be formed are formed once, in chunks. `weights_of` is the clip's
        function, and is called from inside, once for each chunk (README.md has a picture).

        Guarantee: the result is within `rounding.SUM_ERROR` times `bound` of the sum in real numbers, if no unit adds
        more than `bound`. Absent units, of weight zero, are left out, and do not change how the others are added up.
        """
        if self.num_units <= AT_ONCE:
            return self._sum_at_once(weights_of, bound)
        first, *others = groups(self.num_units, AT_ONCE)
        part, of_part = self._take(first)._sum_at_once(weights_of, bound)
        total, weights = in_float64(part), [of_part]
        for units in others:
            part, of_part = self._take(units)._sum_at_once(weights_of, bound)
            add_(total, part)
            weights.append(of_part)
        return total, torch.cat(weights)

    @in_full_precision
    def _sum_at_once(self, weights_of: WeightsOf, bound: float) -> tuple[Tensor, Tensor]:
        """The weighted sum of up to `AT_ONCE` units in float32, and the weights.

        First come the blocks whose norms need no formed gradient. `_add_formed` completes the norms and adds the blocks
        that must be formed, while they are in cache. Then the first blocks are added with the weights.
        """
        total = self._zeros()
        ready = {p: block for p, block in enumerate(self.blocks) if not block.is_formed_later}
        lengths = {p: block.lengths() for p, block in ready.items()}
        squares = torch.empty(self.num_units, len(self.blocks), dtype=torch.float64, device=self.like.device)
        for p, of_block in lengths.items():
            squares[:, p] = of_block.squares
        weights = self._add_formed(total, squares, weights_of) if len(ready) < len(self.blocks) else weights_of(squares)
        weights = by_block(weights, self.layout)
        of_blocks, any_absent = self._for_each_block(weights), bool((weights == 0).any())
        # Errors of different blocks are orthogonal vectors: their squares add up to that of `PLACES_ERROR` * bound.
        tolerance = PLACES_ERROR * bound / sqrt(max(1, sum(block.tolerances for block in ready.values())))
        for p, block in ready.items():
            present = block.present(weights[:, p] != 0) if any_absent else block
            present.add_bounded(total.parts[p], of_blocks[p], lengths[p], tolerance)
        return total.flat, weights

    def _add_formed(self, total: _Total, squares: Tensor, weights_of: WeightsOf) -> Tensor:
        """Adds the blocks whose gradients must be formed to `total`, and returns the weights of all units.

        `squares` has the squared norms of the other blocks. A chunk of units is formed, its weights follow from its
        norms (`weights_of` calls the clip), and it is added while it is in cache. Each group of units has a sum of its
        own, in the memory order of the gradients: the theorem in `rounding` bounds the error of a group.
        """
        later = {p: block for p, block in enumerate(self.blocks) if block.is_formed_later}
        # One buffer for all chunks and blocks: new memory would be fetched from the system page by page each time.
        units_at_a_time, weights, formed = self._units_at_a_time(), [], dict[int, Block]()
        sizes = [min(units_at_a_time, TOGETHER) * block.size for block in later.values()]
        rooms = dict(zip(later, torch.split(self.like.new_empty(sum(sizes)), sizes), strict=True))
        for group in groups(self.num_units, TOGETHER):
            parts = total.parts if group.start == 0 else self._zeros_like(total, later)
            for chunk in groups(group.stop - group.start, units_at_a_time):
                units = slice(group.start + chunk.start, group.start + chunk.stop)
                formed = {}
                for p, block in later.items():
                    taken = len(squares[units]) * block.size
                    formed[p] = block.take(units).formed(rooms[p][:taken])
                    squares[units, p] = formed[p].squared_norms()
                weights.append(by_block(weights_of(squares[units]), self.layout))
                of_blocks, any_absent = self._for_each_block(weights[-1]), bool((weights[-1] == 0).any())
                for p, block in formed.items():
                    present = block.present(weights[-1][:, p] != 0) if any_absent else block
                    present.add_as_held(parts[p], of_blocks[p])
            for p, block in formed.items():
                if group.start == 0:
                    parts[p].copy_(block.in_order(parts[p]))
                else:
                    total.parts[p].add_(block.in_order(parts[p]))
        return torch.cat(weights)

    def _for_each_block(self, weights: Tensor) -> Tensor:
        return weights.to(self.like.dtype).T.contiguous()

    def masked(self, keep: Tensor) -> TapedGradients:
        parts = torch.split(keep, list(self.layout.sizes))
        blocks = tuple(block.masked(part) for block, part in zip(self.blocks, parts, strict=True))
        return replace(self, blocks=blocks)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for start in range(0, self.num_units, chunk):
            yield torch.cat([block.take(slice(start, start + chunk)).dense() for block in self.blocks], dim=1)

    def _take(self, units: slice) -> TapedGradients:
        blocks = tuple(block.take(units) for block in self.blocks)
        return replace(self, blocks=blocks, num_units=units.stop - units.start)

    def _chunks(self) -> Iterator[slice]:
        chunk = self._units_at_a_time()
        for start in range(0, self.num_units, chunk):
            yield slice(start, start + chunk)

    def _units_at_a_time(self) -> int:
        """The number of units whose formed gradients fit into cache, a multiple of the number of threads.

        Fewer units would make more calls of small products; more would take memory and save no time.
        """
        values = sum(block.numbers_formed for block in self.blocks if block.is_formed_later)
        if not values:
            return self.num_units
        units = max(_VALUES_AT_A_TIME / values, min(_FEW_UNITS, _VALUES_IN_CACHE / values))
        threads = torch.get_num_threads()
        return min(self.num_units, threads * max(1, round(units / threads)))

    def _zeros(self) -> _Total:
        flat = zeros(self.like, self.layout.size)
        return _Total(flat, torch.split(flat, list(self.layout.sizes)))

    def _zeros_like(self, total: _Total, blocks: Iterable[int]) -> dict[int, Tensor]:
        return {p: zeros(self.like, len(total.parts[p])) for p in blocks}


class _Total(NamedTuple):
    """A sum over all coordinates, and its parts by parameter, which are views."""

    flat: Tensor
    parts: tuple[Tensor, ...]


def _zeroed(gradients: Tensor, counted: Tensor) -> Tensor:
    """The gradients with zeros for rows that are not `counted`, in the same memory layout.

    With other strides torch may choose other kernels, and their rounding could change a row whose places cancel.
    """
    gradients = gradients if _is_dense(gradients) else gradients.contiguous()
    if bool(counted.all()):
        return gradients
    return gradients.clone(memory_format=torch.preserve_format).index_fill_(0, (~counted).nonzero()[:, 0], 0.0)


def _is_dense(x: Tensor) -> bool:
    """Whether the values fill a range of memory without gaps or overlap: then a copy has the same strides."""
    following = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride != following:
            return False
        following *= size
    return True
