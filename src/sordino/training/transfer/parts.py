"""Parts of a pretrained network that are trained privately, and normalization of its inputs.

What private rows train of a pre-trained network: its last layer, its biases, or all of it.

Noise falls on what is trained and on nothing else, so fewer parameters get less of it; more of them can learn more. The
rest has `requires_grad` off, and a plan does not see it.

Inputs brought to mean 0 and variance 1 by channel, with moments that were released and paid for.

Tramèr and Boneh (2021) normalise scattering features so, and clip what each row adds at the median of the private rows'
norms. That median is itself a statistic of private rows, of which no noise hides anything, so the published method is
not private. Here the bound is a public range: `release_moments` holds every input to it, and charges the budget before
a row is read. The training that follows is charged to the same budget.
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
_SMALLEST_STD = 0.05  # over the mean one: a feature that hardly moves on made-up pictures is not blown up


class TrainedPart(Protocol):
    """Which parameters are trained."""

    def built(self, pretrained: PretrainedNetwork, facts: Facts, *, seed: int) -> Built:
        """The network to train for data with these facts, and what it is given for raw rows."""
        ...


@dataclass(frozen=True)
class LinearProbe:
    """The last layer alone, which begins at zero. What comes before it is applied to every row once, beforehand.

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
    """The biases of all layers, and the last layer.

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
    """All parameters: full fine-tuning.

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> network = AllParameters().built(PretrainedNetwork.fresh("lenet", (1, 28, 28)), facts, seed=0).module
    >>> sum(p.numel() for p in network.parameters() if p.requires_grad)
    61706
    """

    def built(self, pretrained: PretrainedNetwork, facts: Facts, *, seed: int) -> Built:
        return pretrained.built(facts, seed=seed)


@dataclass(frozen=True)
class Representation:
    """What the last layer of a network is given for raw rows, less `mean` and over `std`.

    Both are those of made-up pictures, and public. Without them rows would mostly be alike, and so would their clipped
    gradients: little of the norm would be left for what tells them apart. Each row is prepared alone.
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
