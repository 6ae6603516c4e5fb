"""Inputs brought to mean 0 and variance 1 by channel, with moments that were released and paid for.

Tramèr and Boneh (2021) normalise scattering features so, and clip what each row adds at the median of the private rows'
norms. That median is itself a statistic of private rows, of which no noise hides anything, so the published method is
not private. Here the bound is a public range: `release_moments` holds every input to it, and charges the budget before
a row is read. The training that follows is charged to the same budget.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sordino.releases.moments import Moments

_SMALLEST_VARIANCE = 1e-5


class InputNormalisation(nn.Module):
    """The first layer of a network: subtracts the released means and divides by the released deviations.

    Both are constants: nothing of it is trained, and rows do not mix.

    >>> layer = InputNormalisation(Moments(mean=(1.0, 0.0), std=(2.0, 1.0)))
    >>> layer(torch.tensor([[5.0, 3.0]]))
    tensor([[2.0000, 3.0000]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, moments: Moments) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(moments.mean))
        self.register_buffer("std", torch.tensor(moments.std).square().add(_SMALLEST_VARIANCE).sqrt())

    def forward(self, inputs: Tensor) -> Tensor:
        by_channel = (-1, *(1,) * (inputs.ndim - 2))
        return (inputs.float() - self.mean.reshape(by_channel)) / self.std.reshape(by_channel)
