"""Convolutional networks with tanh on pixels, as private training likes them: bounded activations, no batch norm."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def dp_cnn(outputs: int = 10) -> nn.Module:
    """DP-CNN for colour pictures of 32 pixels: 550,570 parameters with 10 outputs.

    Six 3x3 convolutions of 32, 32, 64, 64, 128 and 128 channels, a maximum over 2x2 after every second, then layers of
    128 and `outputs`. Papernot et al., "Tempered sigmoid activations" (2021).

    >>> sum(p.numel() for p in dp_cnn().parameters())
    550570
    """
    layers: list[nn.Module] = []
    for depth, (inputs, width) in enumerate(pairwise([3, 32, 32, 64, 64, 128, 128])):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.Tanh()]
        layers += [nn.MaxPool2d(2)] if depth % 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, outputs))


def dp_cnn_small(outputs: int = 10) -> nn.Module:
    """DP-CNN/S for grey pictures of 28 pixels: 26,010 parameters with 10 outputs.

    Convolutions of 16 channels (8x8, stride 2, padding 2) and 32 (4x4, stride 2), each before a maximum over 2x2 with
    stride 1, then layers of 32 and `outputs`.

    >>> sum(p.numel() for p in dp_cnn_small().parameters())
    26010
    """
    first = [nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)]
    second = [nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, outputs))
