"""`linear` on vectors and on sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, GramProducts, Instantiated, Outer, Products, gram_is_cheaper
from sordino.gradients.rowwise import on_rows
from sordino.gradients.rules import Tag


@dataclass(frozen=True)
class Linear:
    """y = x W^T + b, at one place per row or at many."""

    names: tuple[str | None, str | None]

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Linear:
        return cls((name_of(arguments["weight"]), name_of(arguments["bias"])))

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        return tag(on_rows(F.linear, F.linear, x, arguments["weight"], arguments["bias"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        x = saved.reshape(len(saved), -1, saved.shape[-1])
        g = output_gradient.reshape(len(x), -1, output_gradient.shape[-1])
        return weight_block(g, x) if self.names[0] else None, Instantiated(g.sum(dim=1)) if self.names[1] else None


def weight_block(g: Tensor, x: Tensor) -> Block:
    """sum_t g[r, t, o] x[r, t, i] in the cheapest form."""
    places, outputs, inputs = g.shape[1], g.shape[2], x.shape[2]
    if places == 1:
        return Outer(g[:, 0], x[:, 0])
    gram = gram_is_cheaper(places=places, size=outputs * inputs, features=outputs + inputs)
    return GramProducts(g, x) if gram else Products(g, x)
