"""LeNet-5."""

from __future__ import annotations

from torch import nn


def lenet(channels: int = 1, size: int = 28, outputs: int = 10) -> nn.Module:
    """LeNet-5 for pictures of 28 or 32 pixels: 61,706 parameters on grey and 62,006 on colour ones, with 10 outputs.

    5x5 convolutions of 6 and 16 channels with tanh, each before a mean over 2x2, then layers of 120, 84 and `outputs`.
    Pictures of 28 pixels are padded to 32. LeCun et al. (1998), with every map of the second layer seeing all of the
    first.

    >>> sum(p.numel() for p in lenet().parameters())
    61706
    """
    first = [nn.Conv2d(channels, 6, 5, padding=(32 - size) // 2), nn.Tanh(), nn.AvgPool2d(2)]
    second = [nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
    head = [nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, outputs)]
    return nn.Sequential(*first, *second, *head)
