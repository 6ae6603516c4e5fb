"""`linear` on vectors and on sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, Instantiated, held_in, weight_block
from sordino.gradients.rowwise import on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag


@dataclass(frozen=True)
class Linear(MultipliesAsItRan):
    """y = x W^T + b, at one place per row or at many."""

    names: tuple[str | None, str | None]

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Linear:
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
        return weight_block(g, x) if self.names[0] else None, Instantiated(bias) if self.names[1] else None
