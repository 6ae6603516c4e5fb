"""Transformers: position embedding, attention, blocks, and small vision transformers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate


class Places(nn.Module):
    """Position embedding: adds a trained vector to each position."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(places, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.vectors


class Attention(nn.Module):
    """Multi-head self-attention, over all tokens or, if `causal`, over earlier ones and the token itself."""

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


class TransformerBlock(nn.Module):
    """Transformer block with pre-normalization: attention and a two-layer network, each with a shortcut."""

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


class SwapLastAxes(nn.Module):
    """Swaps the last two axes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Mean(nn.Module):
    """Mean over positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


PATCH = 4


def vit(input_shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10) -> nn.Module:
    """Vision transformer: four blocks of width 128 with four heads on patches of 4x4 pixels, then a mean over patches.

    809,098 parameters for color images of 32 pixels (64 patches), 803,082 for gray images of 28 pixels (49 patches).

    >>> sum(p.numel() for p in vit().parameters()), sum(p.numel() for p in vit((1, 28, 28)).parameters())
    (809098, 803082)
    """
    return _transformer(input_shape, outputs, patch=PATCH, width=128, heads=4, depth=4)


def vit_small(outputs: int = 10) -> nn.Module:
    """Vision transformer for gray 28x28 images: two blocks of width 64 with four heads on 16 patches of 7x7 pixels.

    >>> sum(p.numel() for p in vit_small().parameters())
    104970
    """
    return _transformer((1, 28, 28), outputs, patch=7, width=64, heads=4, depth=2)


def _transformer(
    input_shape: tuple[int, ...], outputs: int, *, patch: int, width: int, heads: int, depth: int
) -> nn.Module:
    validate.axes(3, input_shape=input_shape)
    channels, rows, columns = input_shape
    patches = [nn.Unfold(patch, stride=patch), SwapLastAxes(), nn.Linear(channels * patch**2, width)]
    places = Places((rows // patch) * (columns // patch), width)
    blocks = [TransformerBlock(width, heads) for _ in range(depth)]
    return nn.Sequential(*patches, places, *blocks, nn.LayerNorm(width), Mean(), nn.Linear(width, outputs))
