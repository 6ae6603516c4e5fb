"""Small networks: LeNet-5, CNNs with tanh, networks on scattering features, and fully connected networks.

Networks on scattering features follow Tramèr and Boneh (2021). CNNs with tanh have bounded activations and no batch
normalization. Fully connected networks flatten inputs of any shape.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn


def lenet(channels: int = 1, size: int = 28, outputs: int = 10) -> nn.Module:
    """LeNet-5 for images of 28 or 32 pixels: 61,706 parameters with 1 channel, 62,006 with 3, and 10 outputs.

    5x5 convolutions of 6 and 16 channels with tanh, each followed by 2x2 mean pooling, then layers of 120, 84 and
    `outputs`. Images of 28 pixels are padded to 32. LeCun et al. (1998), with a fully connected second convolution.

    >>> sum(p.numel() for p in lenet().parameters())
    61706
    """
    first = [nn.Conv2d(channels, 6, 5, padding=(32 - size) // 2), nn.Tanh(), nn.AvgPool2d(2)]
    second = [nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)]
    head = [nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, outputs)]
    return nn.Sequential(*first, *second, *head)


def cnn(channels: int, height: int, width: int, outputs: int) -> nn.Module:
    """A small CNN for images of 8 to about 32 pixels: 21,546 parameters for gray images of 16 pixels and 10 outputs.

    Two 3x3 convolutions of 16 and 32 channels with tanh, each followed by 2x2 mean pooling, then layers of 32 and
    `outputs`.

    >>> cnn(1, 16, 16, 10)(torch.zeros(2, 1, 16, 16)).shape
    torch.Size([2, 10])
    >>> sum(p.numel() for p in cnn(1, 16, 16, 10).parameters())
    21546
    """
    first = [nn.Conv2d(channels, 16, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
    features = 32 * (height // 4) * (width // 4)
    head = [nn.Flatten(), nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, outputs)]
    return nn.Sequential(*first, *second, *head)


def dp_cnn(outputs: int = 10) -> nn.Module:
    """DP-CNN for color images of 32 pixels: 550,570 parameters with 10 outputs.

    Six 3x3 convolutions of 32, 32, 64, 64, 128 and 128 channels, 2x2 max pooling after every second, then layers of 128
    and `outputs`. Papernot et al., "Tempered sigmoid activations" (2021).

    >>> sum(p.numel() for p in dp_cnn().parameters())
    550570
    """
    layers: list[nn.Module] = []
    for depth, (inputs, width) in enumerate(pairwise([3, 32, 32, 64, 64, 128, 128])):
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.Tanh()]
        layers += [nn.MaxPool2d(2)] if depth % 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, outputs))


def dp_cnn_small(outputs: int = 10) -> nn.Module:
    """DP-CNN/S for gray images of 28 pixels: 26,010 parameters with 10 outputs.

    Convolutions of 16 channels (8x8, stride 2, padding 2) and 32 (4x4, stride 2), each followed by 2x2 max pooling with
    stride 1, then layers of 32 and `outputs`.

    >>> sum(p.numel() for p in dp_cnn_small().parameters())
    26010
    """
    first = [nn.Conv2d(1, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)]
    second = [nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, outputs))


class ToFloat32(nn.Module):
    """Casts features, which are stored as float16, to float32."""

    def forward(self, features: Tensor) -> Tensor:
        return features.float() if features.dtype == torch.float16 else features


def h_cnn(outputs: int = 10) -> nn.Module:
    """H-CNN on the 243x8x8 scattering features of color images of 32 pixels: 187,210 parameters with 10 outputs.

    Two 3x3 convolutions of 64 channels with tanh, 2x2 max pooling after the first, and a linear layer.

    >>> sum(p.numel() for p in h_cnn().parameters())
    187210
    """
    first = [nn.Conv2d(243, 64, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(64, 64, 3, padding=1), nn.Tanh()]
    return nn.Sequential(ToFloat32(), *first, *second, nn.Flatten(), nn.Linear(1024, outputs))


def h_cnn_small(outputs: int = 10) -> nn.Module:
    """H-CNN/S on the 81x7x7 scattering features of gray images of 28 pixels: 33,066 parameters with 10 outputs.

    3x3 convolutions of 16 channels (stride 2) and 32 with tanh, then layers of 32 and `outputs`.

    >>> sum(p.numel() for p in h_cnn_small().parameters())
    33066
    """
    first = [nn.Conv2d(81, 16, 3, stride=2, padding=1), nn.Tanh()]
    second = [nn.Conv2d(16, 32, 3, padding=1), nn.Tanh()]
    head = [nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, outputs)]
    return nn.Sequential(ToFloat32(), *first, *second, *head)


class ScatterLinear(nn.Module):
    """Linear layer on scattering features [81 C, M', N'], which `sordino.models.features` computes once.

    39,700 parameters for gray images of 28 pixels and 10 outputs, 155,530 for color images of 32 pixels.

    >>> sum(p.numel() for p in ScatterLinear((81, 7, 7), 10).parameters())
    39700
    >>> sum(p.numel() for p in ScatterLinear((243, 8, 8), 10).parameters())
    155530
    """

    def __init__(self, feature_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(prod(feature_shape), outputs)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.out(features.flatten(1).to(self.out.weight.dtype))  # features are stored as float16
        return out


def linear(inputs: int, outputs: int) -> nn.Module:
    """One linear layer: logistic or linear regression, inputs * outputs + outputs parameters.

    >>> sum(p.numel() for p in linear(784, 10).parameters())
    7850
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs))


def two_layer(inputs: int, outputs: int, *, width: int = 512) -> nn.Module:
    """The two-layer ReLU network: 407,050 parameters on 784 inputs with width 512 and 10 outputs.

    >>> sum(p.numel() for p in two_layer(784, 10).parameters())
    407050
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def table_network(inputs: int, outputs: int, *, width: int = 64) -> nn.Module:
    """Two hidden layers of 64 with tanh, for tables: 11,010 parameters on 104 inputs with 2 outputs.

    >>> sum(p.numel() for p in table_network(104, 2).parameters())
    11010
    """
    hidden = [nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, outputs))
