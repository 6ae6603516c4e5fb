"""The rule C / (1 - mu): a clip norm and a momentum are searched on two lines, and not on a grid.

Zhu and Blaschko (2023), appendix H. With momentum mu one step's noise moves the weights by 1 + mu + mu^2 + ... =
1 / (1 - mu) times itself until it has faded, so that good pairs (C, mu) share C / (1 - mu). That is the displacement in
total. The velocity holds a noise of C / sqrt(1 - mu^2) at a time: the terms of its sum are independent.

Adam divides the velocity by what momentum multiplies it with, so that C and mu are searched one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from sordino._input import validate
from sordino.encodings import Combined, Project, ProjectBiased
from sordino.errors import UsageError
from sordino.kernel.encoding import Encoding
from sordino.tuning.candidates import AlongTheLine, Clips, Momenta, Stage

MOMENTA = (0.0, 0.5, 0.9)
FACTORS = (0.5, 2.0)
_SECOND_MOMENT = 0.999


@runtime_checkable
class Optimizer(Protocol):
    """Makes a torch optimizer of a momentum, and knows how clip norm and momentum go together in it."""

    def make(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer: ...

    def stages(self, momenta: tuple[float, ...], factors: tuple[float, ...]) -> tuple[Stage, Stage]:
        """What is varied, one after the other."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Momentum SGD: along the line of one C / (1 - mu), then other values of it.

    >>> Sgd(lr=0.5).stages(MOMENTA, FACTORS)
    (AlongTheLine(momenta=(0.0, 0.5, 0.9)), Clips(factors=(0.5, 2.0)))
    """

    lr: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)

    def make(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(_trained(model), lr=self.lr, momentum=momentum, weight_decay=self.weight_decay)

    def stages(self, momenta: tuple[float, ...], factors: tuple[float, ...]) -> tuple[Stage, Stage]:
        return AlongTheLine(momenta), Clips(factors)


@dataclass(frozen=True)
class Adam:
    """Adam: clip norms, then momenta (the first beta).

    >>> Adam(lr=0.001).stages(MOMENTA, FACTORS)
    (Clips(factors=(0.5, 2.0)), Momenta(momenta=(0.0, 0.5, 0.9)))
    """

    lr: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay)

    def make(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        betas = (momentum, _SECOND_MOMENT)
        return torch.optim.Adam(_trained(model), lr=self.lr, betas=betas, weight_decay=self.weight_decay)

    def stages(self, momenta: tuple[float, ...], factors: tuple[float, ...]) -> tuple[Stage, Stage]:
        return Clips(factors), Momenta(momenta)


def clip_momentum(
    optimizer: Optimizer,
    encoding: Encoding,
    *,
    momenta: tuple[float, ...] = MOMENTA,
    factors: tuple[float, ...] = FACTORS,
) -> tuple[Stage, Stage]:
    """The stages of the rule for an optimizer. A projected gradient has its clip norms elsewhere, and is refused.

    >>> from sordino.kernel.encoding import Unchanged
    >>> len(clip_momentum(Sgd(lr=0.5), Unchanged()))
    2
    """
    validate.instance(Optimizer, optimizer=optimizer)
    _refuse_projections(encoding)
    return optimizer.stages(momenta, factors)


def _refuse_projections(encoding: Encoding) -> None:
    match encoding:
        case Project() | ProjectBiased():
            raise UsageError(
                f"the rule clip-momentum is not for projected gradients, got {type(encoding).__name__}: their clip "
                "norms are those of the projection, and the clip of the plan is 1."
            )
        case Combined(first=first, second=second):
            _refuse_projections(first)
            _refuse_projections(second)


def _check(lr: float, weight_decay: float) -> None:
    validate.positive(lr=lr)
    validate.between(0, 1e6, weight_decay=weight_decay)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
