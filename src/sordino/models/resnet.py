"""Residual networks for small images, with GroupNorm, which does not mix examples.

The stem is one 3x3 convolution without pooling, as in He et al. (2016) for images of 32 pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn


def resnet18(channels: int = 3, outputs: int = 10) -> nn.Module:
    """Stages of 2, 2, 2 and 2 blocks, 64 to 512 channels: 11,173,962 parameters with 3 channels and 10 outputs."""
    return _resnet(channels, outputs, widths=(64, 128, 256, 512), depths=(2, 2, 2, 2), shortcut=_projection)


def resnet34(channels: int = 3, outputs: int = 10) -> nn.Module:
    """Stages of 3, 4, 6 and 3 blocks, 64 to 512 channels: 21,282,122 parameters with 3 channels and 10 outputs."""
    return _resnet(channels, outputs, widths=(64, 128, 256, 512), depths=(3, 4, 6, 3), shortcut=_projection)


def resnet20(channels: int = 3, outputs: int = 10) -> nn.Module:
    """Three stages of 3 blocks, 16 to 64 channels, shortcuts without parameters.

    269,722 parameters with 3 channels and 10 outputs.

    >>> sum(p.numel() for p in resnet20().parameters())
    269722
    """
    return _resnet(channels, outputs, widths=(16, 32, 64), depths=(3, 3, 3), shortcut=StridedShortcut)


class Residual(nn.Module):
    """Residual block: two 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(_convolution(inputs, width, stride), _norm(width), nn.ReLU())
        self.second = nn.Sequential(_convolution(width, width, 1), _norm(width))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class StridedShortcut(nn.Module):
    """Every `stride`-th position, with channels of zeros added: He et al. (2016), shortcut A."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


def _resnet(
    channels: int,
    outputs: int,
    *,
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    shortcut: Callable[[int, int, int], nn.Module],
) -> nn.Module:
    layers: list[nn.Module] = [_convolution(channels, widths[0], 1), _norm(widths[0]), nn.ReLU()]
    for (inputs, width), depth in zip(pairwise((widths[0], *widths)), depths, strict=True):
        stride = 1 if width == inputs else 2
        beside = nn.Identity() if width == inputs else shortcut(inputs, width, stride)
        layers.append(Residual(inputs, width, stride, beside))
        layers += [Residual(width, width, 1, nn.Identity()) for _ in range(depth - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], outputs))


def _projection(inputs: int, width: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, width, 1, stride=stride, bias=False), _norm(width))


def _convolution(inputs: int, width: int, stride: int) -> nn.Module:
    return nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)


def _norm(width: int) -> nn.Module:
    """GroupNorm with 16 groups, or fewer so that a group has at least four channels."""
    return nn.GroupNorm(min(16, width // 4), width)
