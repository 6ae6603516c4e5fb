"""The rule of `embedding_bag`: sums, means and maxima of vectors of a table, which is never formed for a row.

If each row has one bag, the gradient by its sum or mean is one vector, for all tokens of the bag. For other bags the
lookup is an operation of its own, and each token has a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, zero_unless
from sordino.gradients.layers import EmbeddingBlock, EmbeddingOperation
from sordino.gradients.norms import Lengths, ranked, squared_norms_of_factor
from sordino.gradients.rounding import RAISED
from sordino.gradients.rowwise import merged, on_rows
from sordino.gradients.rules import Tag
from sordino.gradients.views import Name

ARGUMENTS: dict[str, Any] = {
    "input": None,
    "weight": None,
    "offsets": None,
    "max_norm": None,
    "norm_type": 2,
    "scale_grad_by_freq": False,
    "mode": "mean",
    "sparse": False,
    "per_sample_weights": None,
    "include_last_offset": False,
    "padding_idx": None,
}


def recognise(arguments: dict[str, Any], name_of: Any) -> EqualBags | LookedUpBags | None:
    """The rule for a call of `embedding_bag`, or None for one that changes the table or has sparse gradients.

    None also with `scale_grad_by_freq`, for which torch divides by the number of times of another token.
    """
    lookup = EmbeddingOperation.recognise(arguments, name_of)
    if lookup is None or arguments["scale_grad_by_freq"] or arguments["mode"] not in ("sum", "mean", "max"):
        return None
    if arguments["per_sample_weights"] is None and arguments["input"].ndim == 2 and arguments["mode"] != "max":
        return EqualBags(lookup.names, lookup, arguments["mode"])
    return LookedUpBags(lookup.names, lookup)


@dataclass(frozen=True)
class EqualBags:
    """The rule of the sum or mean of bags of equal length: y = sum_t W[token[t]], or the mean without padding."""

    names: tuple[Name | None]
    lookup: EmbeddingOperation
    mode: str

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        def bags(tokens: Tensor, weight: Tensor) -> Tensor:
            return F.embedding_bag(tokens, weight, mode=self.mode, padding_idx=self.lookup.padding)

        tokens = arguments["input"].long()
        return tag(on_rows(bags, merged(bags, batched_axes=2), tokens, arguments["weight"])), tokens

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """Axes: row, bag of the row, place, feature. Most rows have one bag."""
        counted = None if self.lookup.padding is None else saved != self.lookup.padding
        if self.mode == "mean":
            each = torch.ones_like(saved) if counted is None else counted
            output_gradient = output_gradient / each.sum(dim=2, keepdim=True).clamp(min=1)
        if saved.shape[1] == 1:
            of_row = None if counted is None else counted[:, 0]
            return (BagBlock(saved[:, 0], output_gradient[:, 0], self.lookup.table, of_row),)
        g = output_gradient[:, :, None].expand(*saved.shape, -1)
        return self.lookup.blocks(saved, g)


@dataclass(frozen=True)
class LookedUpBags:
    """The rule of any bags, as a lookup and a function of the vectors, which torch differentiates."""

    names: tuple[Name | None]
    lookup: EmbeddingOperation

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        vectors, tokens = self.lookup.run(arguments, tag)
        return combined(arguments, vectors), tokens

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        return self.lookup.blocks(saved, output_gradient)


def combined(arguments: dict[str, Any], vectors: Tensor) -> Tensor:
    """The sum, mean or maximum of each bag, without padding. A bag without tokens gives zeros."""
    tokens, weights, mode = arguments["input"], arguments["per_sample_weights"], arguments["mode"]
    counted = torch.ones_like(tokens, dtype=torch.bool)
    if arguments["padding_idx"] is not None:
        counted = tokens != arguments["padding_idx"] % len(arguments["weight"])
    if weights is not None:
        vectors = vectors * weights[..., None]
    if tokens.ndim == 2:
        vectors, is_member = vectors[:, None], counted[:, None]
    else:
        is_member = _members(arguments["offsets"], len(tokens), arguments["include_last_offset"]) & counted
    is_member = is_member[..., None]
    if mode == "max":
        lowest = torch.where(is_member, vectors, -torch.inf)
        largest = (
            lowest.max(dim=-2).values if tokens.shape[-1] else vectors.new_zeros(*lowest.shape[:-2], lowest.shape[-1])
        )
        output = torch.where(is_member.any(dim=-2), largest, 0.0)
    else:
        output = torch.where(is_member, vectors, 0.0).sum(dim=-2)
        output = output / is_member.sum(dim=-2).clamp(min=1) if mode == "mean" else output
    return output.squeeze(1) if tokens.ndim == 2 else output


def _members(offsets: Tensor, places: int, has_end: bool) -> Tensor:
    """Whether a place belongs to a bag, shape (bag, place). A bag ends where the next one begins, or with the input."""
    place = torch.arange(places, device=offsets.device)
    starts, ends = (offsets[:-1], offsets[1:]) if has_end else (offsets, F.pad(offsets[1:], (0, 1), value=places))
    return (place >= starts[:, None]) & (place < ends[:, None])


def look_up_bags(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The result of a call of `embedding_bag`, by a lookup, which `vmap` runs fast. None for any other call."""
    if function is not F.embedding_bag:
        return None
    given = ARGUMENTS | dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    if given["max_norm"] is not None or given["sparse"] or given["scale_grad_by_freq"]:
        return None
    vectors = F.embedding(given["input"], given["weight"])
    return combined(given, vectors)


@dataclass(frozen=True, repr=False)
class BagBlock(Block):
    """Gradients by an embedding table of rows with one vector each, which belongs to all tokens of the row.

    Tokens that are not `counted` are padding. A token that occurs n times gets n times the vector.
    """

    tokens: Tensor
    g: Tensor
    table: tuple[int, int]
    counted: Tensor | None = None

    @property
    def size(self) -> int:
        return self.table[0] * self.table[1]

    def take(self, rows: slice) -> BagBlock:
        counted = None if self.counted is None else self.counted[rows]
        return replace(self, tokens=self.tokens[rows], g=self.g[rows], counted=counted)

    def of_units(self, starts: tuple[int, ...]) -> Block:
        return self.by_place().of_units(starts)

    def present(self, rows: Tensor) -> BagBlock:
        return replace(self, g=zero_unless(rows, self.g))

    def by_place(self) -> EmbeddingBlock:
        """Gradients with a vector for each place."""
        g = self.g[:, None].expand(*self.tokens.shape, -1)
        if self.counted is not None:
            g = torch.where(self.counted[..., None], g, g.new_zeros(()))
        return EmbeddingBlock(self.tokens, g, self.table)

    def squared_norms(self) -> Tensor:
        return self.lengths().squares

    def lengths(self) -> Lengths:
        """The norm of the vector times that of the numbers n of its tokens, raised as those of `EmbeddingBlock` are."""
        counted = torch.ones_like(self.tokens) if self.counted is None else self.counted.to(self.tokens.dtype)
        numbers = torch.zeros_like(self.tokens).scatter_add_(1, ranked(self.tokens), counted)
        of_vector, places = squared_norms_of_factor(self.g), counted.sum(dim=1).double()
        squares = of_vector * (numbers.double().square().sum(dim=1) + (RAISED * places).square())
        return Lengths(squares, places * of_vector.sqrt())

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        self.by_place().add_bounded(total, weights, lengths, tolerance)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        self.by_place().add_to(total, weights)

    def dense(self) -> Tensor:
        return self.by_place().dense()

    def masked(self, keep: Tensor) -> Block:
        return self.by_place().masked(keep)
