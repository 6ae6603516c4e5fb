"""Convolutional networks on scattering features: Tramèr and Boneh (2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Widened(nn.Module):
    """Features are kept as float16; layers compute in float32."""

    def forward(self, features: Tensor) -> Tensor:
        return features.float() if features.dtype == torch.float16 else features


def h_cnn(outputs: int = 10) -> nn.Module:
    """H-CNN on the 243x8x8 features of colour pictures of 32 pixels: 187,210 parameters with 10 outputs.

    Two 3x3 convolutions of 64 channels with tanh, a maximum over 2x2 after the first, and a linear layer.

    >>> sum(p.numel() for p in h_cnn().parameters())
    187210
    """
    first = [nn.Conv2d(243, 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()]
    return nn.Sequential(Widened(), *first, *second, nn.Flatten(), nn.Linear(1024, outputs))


def h_cnn_small(outputs: int = 10) -> nn.Module:
    """H-CNN/S on the 81x7x7 features of grey pictures of 28 pixels: 33,066 parameters with 10 outputs.

    3x3 convolutions of 16 channels (stride 2) and 32 with tanh, then layers of 32 and `outputs`.

    >>> sum(p.numel() for p in h_cnn_small().parameters())
    33066
    """
    first = [nn.Conv2d(81, 16, 3, stride=2, padding=1), nn.Tanh()]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.Tanh()]
    head = [nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, outputs)]
    return nn.Sequential(Widened(), *first, *second, *head)
