"""Gradients by a parameter from the gradients by its views: slices side by side, transposed products, or formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordino.gradients.blocks import Block, FormedLater, Outer, Products, Several, places_of, weight_block
from sordino.gradients.projections import StackedBlocks, stacked
from sordino.gradients.views import Name, ParameterView


def merged(uses: Sequence[tuple[Name, Block]], like: Tensor) -> Block:
    """One block for a parameter, from the gradients by itself and by its views. `like` has one row per row of these."""
    by_name: dict[Name, list[Block]] = {}
    for name, block in uses:
        by_name.setdefault(name, []).append(block)
    whole: list[Block] = []
    pieces: list[tuple[int, Block]] = []
    for name, blocks in by_name.items():
        if isinstance(name, str):
            whole += blocks
            continue
        block = in_order(name, _merged(blocks))
        if block.size == name.size:
            whole.append(block)
        else:
            pieces.append((name.offset, block))
    sizes = [name.size for name in by_name if isinstance(name, ParameterView)]
    whole += [_stacked(side, sizes[0], like) for side in _without_overlap(pieces)]
    return _merged(whole)


def _merged(uses: list[Block]) -> Block:
    """One block for a tensor that is used several times: products over all places, or else a sum of matrices."""
    if len(uses) == 1:
        return uses[0]
    places = [factors for factors in map(places_of, uses) if factors is not None]
    is_one_shape = len({tuple(side.shape[2] for side in factors) for factors in places}) == 1
    if len(places) == len(uses) and is_one_shape:
        return weight_block(*(torch.cat(side, dim=1) for side in zip(*places, strict=True)))
    return Several(tuple(uses))


def in_order(view: ParameterView, block: Block) -> Block:
    """Gradients by the range of the parameter that begins at the offset of the view, or by the whole parameter.

    They are those by the view, `block`, if these have the order of the parameter, or if an exchange of the two factors
    of outer products gives them that order. Otherwise they are formed, by the whole parameter.
    """
    if torch.empty_strided(view.shape, view.strides, device="meta").is_contiguous():
        return block
    factors = places_of(block)
    if factors is not None:
        outputs, inputs = (side.shape[2] for side in factors)
        if view.strides_as(outputs, inputs) == (1, outputs):
            assert isinstance(block, (Outer, Products))
            return replace(block, left=block.right, right=block.left)
    return ScatteredBlock(block, view)


def _without_overlap(pieces: list[tuple[int, Block]]) -> list[list[tuple[int, Block]]]:
    """The pieces in lists, so that no two of a list overlap. Each piece goes to the first list that has room."""
    sides: list[list[tuple[int, Block]]] = []
    for start, block in sorted(pieces, key=lambda piece: piece[0]):
        room = (side for side in sides if side[-1][0] + side[-1][1].size <= start)
        side = next(room, None)
        if side is None:
            side = []
            sides.append(side)
        side.append((start, block))
    return sides


def _stacked(pieces: list[tuple[int, Block]], size: int, like: Tensor) -> StackedBlocks:
    """The pieces of a parameter, which begin at the given values, with zeros between them."""
    blocks, filled = list[Block](), 0
    for start, block in (*pieces, (size, ZeroBlock(like, 0))):
        blocks += [ZeroBlock(like, start - filled), block]
        filled = start + block.size
    return stacked(tuple(block for block in blocks if block.size))


@dataclass(frozen=True, repr=False)
class ZeroBlock(Block):
    """Gradients of zeros. `like` has the rows, and no values."""

    like: Tensor
    number: int

    @property
    def size(self) -> int:
        return self.number

    @property
    def numbers_formed(self) -> int:
        return 0

    def take(self, rows: slice) -> ZeroBlock:
        return ZeroBlock(self.like[rows], self.number)

    def of_units(self, starts: tuple[int, ...]) -> ZeroBlock:
        return ZeroBlock(self.like[: len(starts) - 1], self.number)

    def squared_norms(self) -> Tensor:
        return self.like.new_zeros(len(self.like), dtype=torch.float64)

    def present(self, rows: Tensor) -> ZeroBlock:
        return self

    def masked(self, keep: Tensor) -> ZeroBlock:
        return self

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        """Adds nothing."""

    def dense(self) -> Tensor:
        return self.like.new_zeros(len(self.like), self.number)


@dataclass(frozen=True, repr=False)
class ScatteredBlock(FormedLater):
    """Gradients by a parameter, from gradients by a view of it. Elements of the view that are one value add up."""

    block: Block
    view: ParameterView

    @property
    def size(self) -> int:
        return self.view.size

    @property
    def numbers_formed(self) -> int:
        return self.view.size + self.block.size

    def take(self, rows: slice) -> ScatteredBlock:
        return ScatteredBlock(self.block.take(rows), self.view)

    def dense(self) -> Tensor:
        gradients = self.block.dense()
        indices = self.view.indices().to(gradients.device)
        return gradients.new_zeros(len(gradients), self.size).index_add_(1, indices, gradients)
