"""Rules for per-example gradients of linear, embedding and normalization layers.

* `linear`, on vectors and on sequences: outer products of input and output gradient, summed over places. Likewise the
  product with a matrix (`@`, `mm`, `addmm`), whose axes are in the other order.
* `embedding`: gradient vectors for a few rows of a large table, which is never formed.
* Layer, group, instance and root-mean-square normalization: scale and shift after a function without parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, DenseBlock, held_in, weight_block, zero_unless
from sordino.gradients.norms import Lengths, lengths_of_sums
from sordino.gradients.rounding import PLACES_TOGETHER, TOGETHER, add_in_groups
from sordino.gradients.rowwise import merged, on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag
from sordino.gradients.views import Name


@dataclass(frozen=True)
class LinearOperation(MultipliesAsItRan):
    """The rule of y = x W^T + b, at one place per row or at many."""

    names: tuple[Name | None, Name | None]

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> LinearOperation:
        return cls((name_of(arguments["weight"]), name_of(arguments["bias"])))

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        output = tag(on_rows(F.linear, F.linear, x, arguments["weight"], arguments["bias"]))
        return output, x.to(output.dtype)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        x = saved.reshape(len(saved), -1, saved.shape[-1])
        g = output_gradient.reshape(len(x), -1, output_gradient.shape[-1])
        dtype = held_in(g.dtype)
        bias = g[:, 0].to(dtype) if g.shape[1] == 1 else g.sum(dim=1, dtype=dtype)
        return weight_block(g, x) if self.names[0] else None, DenseBlock(bias) if self.names[1] else None


@dataclass(frozen=True)
class MatrixProduct(MultipliesAsItRan):
    """The rule of y = x W + b with a matrix W whose first axis is that of the inputs: `x @ W`, `mm` and `addmm`."""

    names: tuple[Name | None, Name | None]

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> MatrixProduct | None:
        x, weight, bias = _factors(arguments)
        if not (isinstance(x, Tensor) and isinstance(weight, Tensor)) or x.ndim < 2 or weight.ndim != 2:
            return None
        names = name_of(weight), name_of(bias)
        is_vector = names[1] is None or (bias is not None and bias.ndim == 1)
        is_scaled = arguments.get("beta", 1) != 1 or arguments.get("alpha", 1) != 1
        return cls(names) if is_vector and not is_scaled and arguments.get("out") is None else None

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x, weight, bias = _factors(arguments)
        output = tag(on_rows(_product, _product, x, weight, bias))
        return output, x.to(output.dtype)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """Those of a linear layer, with the two factors of each outer product exchanged."""
        weight, bias = self.names
        x = saved.reshape(len(saved), -1, saved.shape[-1])
        g = output_gradient.reshape(len(x), -1, output_gradient.shape[-1])
        _, of_bias = LinearOperation((None, bias)).blocks(x, g)
        return weight_block(x, g) if weight else None, of_bias


def _factors(arguments: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input, weight and bias, by the names that torch gives them."""
    if "mat1" in arguments:
        return arguments["mat1"], arguments["mat2"], arguments["input"]
    return arguments["input"], arguments["mat2" if "mat2" in arguments else "other"], None


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None or bias.ndim == 1:
        return F.linear(x, weight.t(), bias)
    return torch.matmul(x, weight) + bias


@dataclass(frozen=True)
class EmbeddingOperation:
    """The rule of y[t] = W[token[t]]. The vector of the padding token is not trained.

    With `is_scaled` (`scale_grad_by_freq`), the gradient of a token is divided by the number of times that the row has
    the token: torch divides by the number in the batch, and each row is a batch of its own.
    """

    names: tuple[Name | None]
    padding: int | None
    table: tuple[int, int]
    is_scaled: bool = False

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> EmbeddingOperation | None:
        if arguments["max_norm"] is not None or arguments["sparse"]:
            return None
        weight, padding = arguments["weight"], arguments["padding_idx"]
        if padding is not None and padding < 0:
            padding += len(weight)
        table = weight.shape[0], weight.shape[1]
        return cls((name_of(weight),), padding, table, arguments["scale_grad_by_freq"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        tokens = arguments["input"]
        return tag(on_rows(F.embedding, F.embedding, tokens, arguments["weight"])), tokens

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        tokens = saved.reshape(len(saved), -1)
        g = output_gradient.reshape(len(tokens), -1, self.table[1])
        if self.padding is not None:
            g = torch.where((tokens == self.padding)[..., None], g.new_zeros(()), g)
        if self.is_scaled:
            g = g / (tokens[:, :, None] == tokens[:, None, :]).sum(dim=2)[..., None]
        return (EmbeddingBlock(tokens, g, self.table),)


def embed(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """An embedding lookup with a padding token, or None for any other call.

    For a table of which each row has a copy: `vmap` would train the vector of the padding token.
    """
    if function is not F.embedding:
        return None
    given = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
    padding, weight = given.get("padding_idx"), given["weight"]
    if padding is None or given.get("max_norm") is not None:
        return None
    vectors = F.embedding(given["input"], weight)
    is_padding = given["input"] == padding % len(weight)
    return torch.where(is_padding[..., None], vectors.detach(), vectors)


@dataclass(frozen=True, repr=False)
class EmbeddingBlock(Block):
    """Gradients by an embedding table: vector `g[r, t]` belongs to row `tokens[r, t]` of the table."""

    tokens: Tensor
    g: Tensor
    table: tuple[int, int]

    @property
    def size(self) -> int:
        return self.table[0] * self.table[1]

    def take(self, rows: slice) -> EmbeddingBlock:
        return EmbeddingBlock(self.tokens[rows], self.g[rows], self.table)

    def of_units(self, starts: tuple[int, ...]) -> EmbeddingBlock:
        """The tokens of all rows of a unit become those of one row. Units with fewer rows get vectors of zeros."""
        counts = torch.tensor(starts, device=self.g.device).diff()[:, None]
        number = torch.arange(max(1, int(counts.max())), device=self.g.device)
        rows = (torch.tensor(starts[:-1], device=self.g.device)[:, None] + number).clamp(max=len(self.g) - 1)
        g = torch.where((number < counts)[..., None, None], self.g[rows], self.g.new_zeros(()))
        return EmbeddingBlock(self.tokens[rows].flatten(1), g.flatten(1, 2), self.table)

    def present(self, rows: Tensor) -> EmbeddingBlock:
        return EmbeddingBlock(self.tokens, zero_unless(rows, self.g), self.table)

    def squared_norms(self) -> Tensor:
        return self.lengths().squares

    def lengths(self) -> Lengths:
        """Vectors of equal tokens of a row add up before their squares do."""
        return lengths_of_sums(self.g, self.tokens)

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        """Adds up in float64, for the tokens that occur. This is cheap, and exact enough even if places cancel.

        Each group of rows adds to the vectors of these tokens only, and the table is written once.
        """
        occurring, places = torch.unique(self.tokens, return_inverse=True)

        def add(part: Tensor, rows: slice) -> None:
            vectors = (weights[rows, None, None].double() * self.g[rows]).flatten(0, 1)
            sums = vectors.new_zeros(len(occurring), self.table[1])
            part.copy_(sums.index_add_(0, places[rows].flatten(), vectors).flatten())

        of_occurring = total.new_zeros(len(occurring) * self.table[1])
        together = max(1, min(TOGETHER, PLACES_TOGETHER // max(1, self.tokens.shape[1])))
        add_in_groups(of_occurring, len(weights), together, add)
        total.view(self.table).index_copy_(0, occurring, of_occurring.view(-1, self.table[1]))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        weighted = weights[:, None, None] * self.g
        total.view(self.table).index_add_(0, self.tokens.flatten(), weighted.flatten(0, 1))

    def dense(self) -> Tensor:
        gradients = self.g.new_zeros(len(self.g), *self.table)
        rows = torch.arange(len(self.g), device=self.g.device)[:, None].expand_as(self.tokens)
        return gradients.index_put_((rows, self.tokens), self.g, accumulate=True).flatten(1)

    def masked(self, keep: Tensor) -> EmbeddingBlock:
        """Masks the vectors in place of the table, which is correct because equal tokens have equal masks."""
        kept = F.embedding(self.tokens, keep.reshape(self.table).to(self.g.dtype))
        return EmbeddingBlock(self.tokens, self.g * kept, self.table)


@dataclass(frozen=True)
class LayerNorm:
    """The rule of `layer_norm`, whose parameters have the shape of the last axes."""

    names: tuple[Name | None, Name | None]
    shape: tuple[int, ...]
    eps: float

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> LayerNorm:
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, tuple(arguments["normalized_shape"]), arguments["eps"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        return tag(on_rows(self._norm, self._norm, x, arguments["weight"], arguments["bias"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """Computes the normalized input again, because keeping it would take memory."""
        g = output_gradient.reshape(len(saved), -1, prod(self.shape))
        weight = DenseBlock((self._norm(saved).reshape(g.shape) * g).sum(dim=1)) if self.names[0] else None
        return weight, DenseBlock(g.sum(dim=1)) if self.names[1] else None

    def _norm(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, self.shape, weight, bias, self.eps)


@dataclass(frozen=True)
class RMSNorm:
    """The rule of `rms_norm`: layer normalization without mean and shift."""

    names: tuple[Name | None]
    shape: tuple[int, ...]
    eps: float | None

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> RMSNorm:
        return cls((name_of(arguments["weight"]),), tuple(arguments["normalized_shape"]), arguments["eps"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        return tag(on_rows(self._norm, self._norm, x, arguments["weight"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        g = output_gradient.reshape(len(saved), -1, prod(self.shape))
        return (DenseBlock((self._norm(saved).reshape(g.shape) * g).sum(dim=1)),)

    def _norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.rms_norm(x, self.shape, weight, self.eps)


@dataclass(frozen=True)
class ChannelNorm:
    """The rule of `group_norm`, and of `instance_norm` without running statistics: one parameter per channel."""

    names: tuple[Name | None, Name | None]
    groups: int
    eps: float

    @classmethod
    def recognise_group_norm(cls, arguments: dict[str, Any], name_of: Any) -> ChannelNorm:
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, arguments["num_groups"], arguments["eps"])

    @classmethod
    def recognise_instance_norm(cls, arguments: dict[str, Any], name_of: Any) -> ChannelNorm | None:
        """Each channel is a group. None with running statistics, which are not those of the row."""
        if not arguments["use_input_stats"] or arguments["running_mean"] is not None:
            return None
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, arguments["input"].shape[1], arguments["eps"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        of_rows = merged(self._norm, batched_axes=x.ndim)
        return tag(on_rows(self._norm, of_rows, x, arguments["weight"], arguments["bias"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """Axes of `g`: row, image of the row, channel, place. Each image has its own statistics."""
        g = output_gradient.reshape(*output_gradient.shape[:3], -1)
        weight, bias = None, DenseBlock(g.sum(dim=(1, 3))) if self.names[1] else None
        if self.names[0]:
            weight = DenseBlock((self._norm(saved.flatten(0, 1)).reshape(g.shape) * g).sum(dim=(1, 3)))
        return weight, bias

    def _norm(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.group_norm(x, self.groups, weight, bias, self.eps)
