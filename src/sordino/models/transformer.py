"""The parts of transformers: places, attention, and the block of both halves."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Places(nn.Module):
    """Adds a trained vector to each place."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(places, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.vectors


class Attention(nn.Module):
    """Several heads, each token looking at all, or where `causal` at those before it."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, places, width = x.shape
        by_head = self.project(x).reshape(rows, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2], is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(rows, places, width))
        return out


class Block(nn.Module):
    """Attention and a two-layer network, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, causal=causal))
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        thought: Tensor = self.think(x)
        return x + thought


class Transposed(nn.Module):
    """The last two axes swapped."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Mean(nn.Module):
    """The mean over places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)
