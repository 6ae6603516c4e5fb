"""All that decides a training but the head, the way noise is made, epsilon and the seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from sordino.accounting import Adjacency
from sordino.kernel.sampling import Poisson

ADJACENCY = Adjacency.ZERO_OUT
DELTA = 1e-5


@dataclass(frozen=True)
class Settings:
    """Steps of SGD with momentum on Poisson batches, in which each row joins with chance `rate`."""

    steps: int
    rate: float
    learning_rate: float
    clip: float
    momentum: float = 0.5

    @property
    def sampler(self) -> Poisson:
        return Poisson(self.rate, self.steps, ADJACENCY)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)
