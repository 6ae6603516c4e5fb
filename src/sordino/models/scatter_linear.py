"""A linear layer on scattering features: Tramèr and Boneh (2021)."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn


class ScatterLinear(nn.Module):
    """One linear layer on prepared scattering features [81 C, M', N'], which `sordino.models.features` makes once.

    39,700 parameters on grey pictures of 28 pixels and 10 outputs, 155,530 on colour pictures of 32 pixels.

    >>> sum(p.numel() for p in ScatterLinear((81, 7, 7), 10).parameters())
    39700
    >>> sum(p.numel() for p in ScatterLinear((243, 8, 8), 10).parameters())
    155530
    """

    def __init__(self, feature_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.out = nn.Linear(prod(feature_shape), outputs)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.out(features.flatten(1).to(self.out.weight.dtype))  # features are kept as float16
        return out
