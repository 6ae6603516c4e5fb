"""The query, key and value projections of attention: several inputs, each with its own piece of a linear layer.

`MultiheadAttention` keeps three weights, or at least three biases, in one parameter. The tape does not know a slice of
a parameter as a parameter, so the projections are one operation here, with one rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import wrap_torch_function

from sordino.gradients.blocks import Block, OfPlaces, Several
from sordino.gradients.embedding_bags import BagBlock
from sordino.gradients.layers import EmbeddingBlock, LinearOperation
from sordino.gradients.norms import Lengths
from sordino.gradients.rowwise import on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag
from sordino.gradients.views import Name


def _seen_by_modes(
    inputs: Sequence[Tensor], weights: Sequence[Tensor], bias: Tensor | None, features: Sequence[int]
) -> tuple[Tensor, ...]:
    return *inputs, *weights


@wrap_torch_function(_seen_by_modes)
def projections(
    inputs: Sequence[Tensor], weights: Sequence[Tensor], bias: Tensor | None, features: Sequence[int]
) -> list[Tensor]:
    """x W^T + b for each input x, where `features` are the numbers of outputs.

    There is one weight for each input, or a single weight in which theirs are stacked, as they are in `bias`.
    """
    pieces = torch.split(weights[0], list(features)) if len(weights) == 1 else weights
    biases = [None] * len(inputs) if bias is None else torch.split(bias, list(features))
    return [on_rows(F.linear, F.linear, x, weight, b) for x, weight, b in zip(inputs, pieces, biases, strict=True)]


@dataclass(frozen=True)
class Projection:
    """The sizes of one projection, within a row."""

    places: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Projections(MultipliesAsItRan):
    """The rule of `projections`. The last name is that of the bias."""

    names: tuple[Name | None, ...]
    parts: tuple[Projection, ...]

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Projections:
        sizes = zip(arguments["inputs"], arguments["features"], strict=True)
        parts = tuple(Projection(x.numel() // x.shape[-1], x.shape[-1], outputs) for x, outputs in sizes)
        return cls((*map(name_of, arguments["weights"]), name_of(arguments["bias"])), parts)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[list[Tensor], Tensor]:
        outputs = projections(**arguments)
        tagged = torch.split(tag(_side_by_side(outputs)), [y.numel() for y in outputs])
        results = [flat.reshape(y.shape) for flat, y in zip(tagged, outputs, strict=True)]
        return results, _side_by_side(arguments["inputs"]).to(outputs[0].dtype)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        *weights, bias = self.names
        x = torch.split(saved, [part.places * part.inputs for part in self.parts], dim=1)
        g = torch.split(output_gradient, [part.places * part.outputs for part in self.parts], dim=1)
        of_parts = [
            LinearOperation((weight, bias)).blocks(
                x.reshape(-1, part.places, part.inputs), g.reshape(-1, part.places, part.outputs)
            )
            for part, weight, x, g in zip(self.parts, cycle(weights), x, g, strict=False)
        ]
        of_weights, of_bias = zip(*of_parts, strict=True)
        return *(of_weights if len(weights) > 1 else (_stacked(of_weights),)), _stacked(of_bias)


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten() for x in tensors])


def _stacked(blocks: tuple[Block | None, ...]) -> StackedBlocks | None:
    pieces = tuple(block for block in blocks if block is not None)
    return stacked(pieces) if pieces else None


def stacked(pieces: tuple[Block, ...]) -> StackedBlocks:
    """Stacked blocks. If one piece must be formed, all are: formed chunks are added without `add_bounded`."""
    pieces = tuple(
        inner for piece in pieces for inner in (piece.pieces if isinstance(piece, StackedBlocks) else [piece])
    )
    if any(piece.is_formed_later for piece in pieces):
        pieces = tuple(map(_to_be_formed, pieces))
    return StackedBlocks(pieces)


def _to_be_formed(piece: Block) -> Block:
    """The piece in a form whose places cannot cancel in the sum of a chunk."""
    if isinstance(piece, OfPlaces):
        return piece.to_be_formed()
    return Several((piece,)) if isinstance(piece, (EmbeddingBlock, BagBlock)) else piece


@dataclass(frozen=True, repr=False)
class StackedBlocks(Block):
    """Gradients by a parameter that consists of stacked pieces, each with gradients in a form of its own."""

    pieces: tuple[Block, ...]

    @property
    def size(self) -> int:
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [piece.size for piece in self.pieces]

    @property
    def is_formed_later(self) -> bool:
        return any(piece.is_formed_later for piece in self.pieces)

    @property
    def numbers_formed(self) -> int:
        return sum(piece.numbers_formed for piece in self.pieces)

    def of_units(self, starts: tuple[int, ...]) -> StackedBlocks:
        return stacked(tuple(piece.of_units(starts) for piece in self.pieces))

    def formed(self, room: Tensor | None = None) -> StackedBlocks:
        return StackedBlocks(tuple(piece.formed() for piece in self.pieces))

    def take(self, rows: slice) -> StackedBlocks:
        return StackedBlocks(tuple(piece.take(rows) for piece in self.pieces))

    @property
    def tolerances(self) -> int:
        return sum(piece.tolerances for piece in self.pieces)

    def squared_norms(self) -> Tensor:
        return self.lengths().squares

    def lengths(self) -> Lengths:
        """Squared norms of the whole, and magnitudes by piece, shape (r, pieces)."""
        squares, magnitudes = zip(*(piece.lengths() for piece in self.pieces), strict=True)
        zeros = torch.zeros_like(squares[0])
        of_pieces = torch.stack([zeros if each is None else each for each in magnitudes], dim=1)
        return Lengths(torch.stack(squares).sum(dim=0), of_pieces)

    def present(self, rows: Tensor) -> StackedBlocks:
        return StackedBlocks(tuple(piece.present(rows) for piece in self.pieces))

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        assert lengths.magnitudes is not None
        parts = zip(self.pieces, torch.split(total, self._sizes), lengths.magnitudes.unbind(1), strict=True)
        for piece, part, magnitudes in parts:
            piece.add_bounded(part, weights, Lengths(lengths.squares, magnitudes), tolerance)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        for piece, part in zip(self.pieces, torch.split(total, self._sizes), strict=True):
            piece.add_to(part, weights)

    def dense(self) -> Tensor:
        return torch.cat([piece.dense() for piece in self.pieces], dim=1)

    def masked(self, keep: Tensor) -> StackedBlocks:
        parts = zip(self.pieces, torch.split(keep, self._sizes), strict=True)
        return stacked(tuple(piece.masked(part) for piece, part in parts))
