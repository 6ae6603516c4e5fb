"""CNN6, the network of the R-GAP paper (Zhu and Blaschko 2021): six convolutions without biases, one output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SLOPE = 0.2  # negative slope of LeakyReLU: R-GAP needs an invertible activation

Convolution = tuple[int, int, int, int, int]  # inputs, outputs, kernel, stride, padding

_CNN6: tuple[Convolution, ...] = (
    (3, 12, 4, 2, 2),
    (12, 36, 3, 2, 1),
    (36, 36, 3, 1, 1),
    (36, 36, 3, 1, 1),
    (36, 64, 3, 2, 1),
    (64, 128, 3, 1, 1),
)


def cnn6(*, seed: int = 0) -> nn.Sequential:
    """CNN6 for color images of 32 x 32 pixels, with 125,456 parameters in float64: errors grow from layer to layer.

    >>> sum(p.numel() for p in cnn6().parameters()), cnn6()(torch.zeros(1, 3, 32, 32).double()).shape
    (125456, torch.Size([1, 1]))
    """
    return invertible_network(_CNN6, 3200, seed=seed)


def invertible_network(convolutions: tuple[Convolution, ...], features: int, *, seed: int = 0) -> nn.Sequential:
    """Convolutions, each with a LeakyReLU, and a linear layer from `features` values to one output. No biases."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs, outputs, kernel, stride, padding in convolutions:
            layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False), nn.LeakyReLU(SLOPE)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 1, bias=False)).double()


def logistic_loss(outputs: Tensor, target: Tensor) -> Tensor:
    """log(1 + e^-u) with u = y f, where y is 1 for odd class indices and -1 for even ones.

    >>> logistic_loss(torch.zeros(1, 1), torch.tensor([3]))
    tensor(0.6931)
    """
    sign = 2.0 * (target % 2) - 1.0
    return F.softplus(-sign * outputs.squeeze(1)).mean()
