"""Parts of a pretrained network to train privately (last layer, biases or all), and normalization of its inputs.

Noise is added to trained parameters only, so with fewer of them there is less noise; with more of them the model can
learn more. Other parameters have `requires_grad=False`, and are not part of a plan.

`InputNormalisation` uses released means and variances by channel. Tramèr and Boneh (2021) normalize scattering features
so, but clip each row's contribution to the median norm of the private rows. That median is released without noise, so
the published method is not private. Here the bound is a public range: `release_moments` clamps inputs to it, and
charges the budget before a row is read. The training is charged to the same budget.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from sordino.data import Facts
from sordino.models import Built
from sordino.releases.moments import Moments
from sordino.training.transfer.pretraining import PretrainedNetwork, head, made_up_rows

_ROWS_AT_A_TIME = 500
_MADE_UP_ROWS, _MADE_UP_SEED = 512, 20_251
_SMALLEST_STD = 0.05  # relative to the mean one: features that hardly vary on synthetic images are not amplified


class TrainedPart(Protocol):
    """The part of a network to train."""

    def built(self, pretrained: PretrainedNetwork, facts: Facts, *, seed: int) -> Built:
        """Builds the network to train for data with these facts, with its feature transform."""
        ...


@dataclass(frozen=True)
class LinearProbe:
    """Trains the last layer only, from zero. The other layers are applied to every row once, before training.

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> built = LinearProbe().built(PretrainedNetwork.fresh("lenet", (1, 28, 28)), facts, seed=0)
    >>> built.prepare(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape, built.module
    (torch.Size([2, 84]), Linear(in_features=84, out_features=10, bias=True))
    """

    def built(self, pretrained: PretrainedNetwork, facts: Facts, *, seed: int) -> Built:
        whole = pretrained.built(facts, seed=seed)
        last = head(whole.module)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return Built(last, Representation.of(whole, facts))


@dataclass(frozen=True)
class BiasOnly:
    """Trains the biases of all layers, and the last layer.

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> network = BiasOnly().built(PretrainedNetwork.fresh("lenet", (1, 28, 28)), facts, seed=0).module
    >>> sum(p.numel() for p in network.parameters() if p.requires_grad)
    1076
    """

    def built(self, pretrained: PretrainedNetwork, facts: Facts, *, seed: int) -> Built:
        built = pretrained.built(facts, seed=seed)
        for name, parameter in built.module.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        head(built.module).requires_grad_(True)
        return built


@dataclass(frozen=True)
class AllParameters:
    """Trains all parameters (full fine-tuning).

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> network = AllParameters().built(PretrainedNetwork.fresh("lenet", (1, 28, 28)), facts, seed=0).module
    >>> sum(p.numel() for p in network.parameters() if p.requires_grad)
    61706
    """

    def built(self, pretrained: PretrainedNetwork, facts: Facts, *, seed: int) -> Built:
        return pretrained.built(facts, seed=seed)


@dataclass(frozen=True)
class Representation:
    """Inputs of the last layer of a network, normalized by `mean` and `std`.

    Both were computed from synthetic images, so they are public. Without them, rows and their gradients would be
    similar, and clipping would leave little of the norm for their differences. Each row is prepared by itself.
    """

    whole: Built
    mean: Tensor = field(repr=False)
    std: Tensor = field(repr=False)

    @classmethod
    def of(cls, whole: Built, facts: Facts) -> Representation:
        rows = _before_the_last_layer(whole, made_up_rows(whole, facts, _MADE_UP_ROWS, seed=_MADE_UP_SEED))
        std = rows.std(dim=0)
        return cls(whole, rows.mean(dim=0), std.clamp(min=max(1e-6, _SMALLEST_STD * float(std.mean()))))

    def __call__(self, inputs: Tensor) -> Tensor:
        return torch.cat([self._prepare(rows) for rows in torch.split(inputs, _ROWS_AT_A_TIME)])

    def _prepare(self, inputs: Tensor) -> Tensor:
        rows = inputs if self.whole.features is None else self.whole.features(inputs)
        return (_before_the_last_layer(self.whole, rows) - self.mean) / self.std


@torch.no_grad()
def _before_the_last_layer(built: Built, rows: Tensor) -> Tensor:
    for layer in list(built.module.children())[:-1]:
        rows = layer(rows)
    return rows


_SMALLEST_VARIANCE = 1e-5


class InputNormalisation(nn.Module):
    """First layer of a network: subtracts released means and divides by released standard deviations.

    Both are constants, so nothing is trained, and rows do not mix.

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
