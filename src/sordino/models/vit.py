"""Small vision transformers."""

from __future__ import annotations

from torch import nn

from sordino._input import validate
from sordino.models.transformer import Block, Mean, Places, Transposed

PATCH = 4


def vit(input_shape: tuple[int, ...] = (3, 32, 32), outputs: int = 10) -> nn.Module:
    """Four blocks of width 128 with four heads on patches of 4 by 4 pixels, and the mean over patches.

    809,098 parameters on colour pictures of 32 pixels (64 patches), 803,082 on grey ones of 28 (49 patches).

    >>> sum(p.numel() for p in vit().parameters()), sum(p.numel() for p in vit((1, 28, 28)).parameters())
    (809098, 803082)
    """
    return _transformer(input_shape, outputs, patch=PATCH, width=128, heads=4, depth=4)


def vit_small(outputs: int = 10) -> nn.Module:
    """Two blocks of width 64 with four heads on the 16 patches, of 7 by 7 pixels, of grey pictures of 28 pixels.

    >>> sum(p.numel() for p in vit_small().parameters())
    104970
    """
    return _transformer((1, 28, 28), outputs, patch=7, width=64, heads=4, depth=2)


def _transformer(
    input_shape: tuple[int, ...], outputs: int, *, patch: int, width: int, heads: int, depth: int
) -> nn.Module:
    validate.axes(3, input_shape=input_shape)
    channels, rows, columns = input_shape
    patches = [nn.Unfold(patch, stride=patch), Transposed(), nn.Linear(channels * patch**2, width)]
    places = Places((rows // patch) * (columns // patch), width)
    blocks = [Block(width, heads) for _ in range(depth)]
    return nn.Sequential(*patches, places, *blocks, nn.LayerNorm(width), Mean(), nn.Linear(width, outputs))
