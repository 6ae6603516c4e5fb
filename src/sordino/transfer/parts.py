"""What private rows train of a pre-trained network: its last layer, its biases, or all of it.

Noise falls on what is trained and on nothing else, so fewer parameters get less of it; more of them can learn more. The
rest has `requires_grad` off, and a plan does not see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.data import Facts
from sordino.models import Built
from sordino.transfer.pretrained import Pretrained, head

_ROWS_AT_A_TIME = 500


class Part(Protocol):
    """Which parameters are trained."""

    def built(self, pretrained: Pretrained, facts: Facts, *, seed: int) -> Built:
        """The network to train for data with these facts, and what it is given for raw rows."""
        ...


@dataclass(frozen=True)
class LinearProbe:
    """The last layer alone, which begins at zero. What comes before it is applied to every row once, beforehand.

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> built = LinearProbe().built(Pretrained.fresh("lenet", (1, 28, 28)), facts, seed=0)
    >>> built.prepare(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape, built.module
    (torch.Size([2, 84]), Linear(in_features=84, out_features=10, bias=True))
    """

    def built(self, pretrained: Pretrained, facts: Facts, *, seed: int) -> Built:
        whole = pretrained.built(facts, seed=seed)
        last = head(whole.module)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return Built(last, Representation(whole))


@dataclass(frozen=True)
class BiasOnly:
    """The biases of all layers, and the last layer.

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> network = BiasOnly().built(Pretrained.fresh("lenet", (1, 28, 28)), facts, seed=0).module
    >>> sum(p.numel() for p in network.parameters() if p.requires_grad)
    1076
    """

    def built(self, pretrained: Pretrained, facts: Facts, *, seed: int) -> Built:
        built = pretrained.built(facts, seed=seed)
        for name, parameter in built.module.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        head(built.module).requires_grad_(True)
        return built


@dataclass(frozen=True)
class Everything:
    """All parameters: full fine-tuning.

    >>> facts = Facts("mnist", (1, 28, 28), 10)
    >>> network = Everything().built(Pretrained.fresh("lenet", (1, 28, 28)), facts, seed=0).module
    >>> sum(p.numel() for p in network.parameters() if p.requires_grad)
    61706
    """

    def built(self, pretrained: Pretrained, facts: Facts, *, seed: int) -> Built:
        return pretrained.built(facts, seed=seed)


@dataclass(frozen=True)
class Representation:
    """What the last layer of a network is given for raw rows, brought to mean 0 and variance 1 row by row.

    Each row is prepared from itself and from public weights, so it costs no privacy.
    """

    whole: Built

    def __call__(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([self._prepare(rows) for rows in torch.split(inputs, _ROWS_AT_A_TIME)])

    def _prepare(self, inputs: Tensor) -> Tensor:
        module, features = self.whole.module, self.whole.features
        rows: Tensor = inputs if features is None else features(inputs)
        for layer in list(module.children())[:-1]:
            rows = layer(rows)
        return F.layer_norm(rows, rows.shape[1:])
