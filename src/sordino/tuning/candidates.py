"""Candidates of a search: pairs of clipping norm C and momentum mu, and stages that vary them around the best pair.

The rule clip-momentum (Zhu and Blaschko 2023, appendix H) searches C and mu on two lines in place of a grid. With
momentum mu, the noise of one step moves the weights by 1 + mu + mu^2 + ... = 1 / (1 - mu) times itself in total, so
good pairs have about equal displacement C / (1 - mu). The noise of the velocity in one step is C / sqrt(1 - mu^2),
because the terms of its sum are independent.

Adam normalizes the velocity, so for Adam C and mu are searched one after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from sordino._input import validate
from sordino.encodings import Combined, Project, ProjectBiased
from sordino.errors import UsageError
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.encoding import Encoding


@dataclass(frozen=True)
class Candidate:
    """A clipping norm C and a momentum mu.

    >>> round(Candidate(clip=0.1, momentum=0.9).displacement, 6)
    1.0
    """

    clip: float
    momentum: float

    def __post_init__(self) -> None:
        ClipByNorm(self.clip)
        validate.between(0, 1, high_open=True, momentum=self.momentum)

    @property
    def displacement(self) -> float:
        """C / (1 - mu): total movement of the weights by one step's noise, per noise multiplier, with SGD."""
        return self.clip / (1 - self.momentum)

    @property
    def velocity_noise(self) -> float:
        """C / sqrt(1 - mu^2): noise of the velocity in one step. It grows more slowly with the momentum."""
        return self.clip / math.sqrt(1 - self.momentum**2)


@runtime_checkable
class Stage(Protocol):
    """Candidates around the best one so far. Their number must not depend on which one that is."""

    def around(self, best: Candidate) -> tuple[Candidate, ...]: ...


@dataclass(frozen=True)
class AlongTheLine:
    """Varies the momentum with C / (1 - mu) constant.

    >>> [(round(each.clip, 3), each.momentum) for each in AlongTheLine((0.0, 0.5)).around(Candidate(0.1, 0.9))]
    [(1.0, 0.0), (0.5, 0.5)]
    """

    momenta: tuple[float, ...]

    def __post_init__(self) -> None:
        check_momenta(self.momenta)

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        return tuple(Candidate(best.displacement * (1 - mu), mu) for mu in self.momenta if mu != best.momentum)


@dataclass(frozen=True)
class Clips:
    """Multiplies the clipping norm by each factor, with the momentum constant."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        check_factors(self.factors)

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        return tuple(replace(best, clip=best.clip * factor) for factor in self.factors if factor != 1)


@dataclass(frozen=True)
class Momenta:
    """Varies the momentum with the clipping norm constant."""

    momenta: tuple[float, ...]

    def __post_init__(self) -> None:
        check_momenta(self.momenta)

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        return tuple(replace(best, momentum=mu) for mu in self.momenta if mu != best.momentum)


@dataclass(frozen=True)
class CandidateGrid:
    """Two stages in one: candidates of `second` around every candidate of `first`.

    With payment "repeat" a stage costs the same whatever its number of candidates, so one stage costs less than two.

    >>> len(CandidateGrid(AlongTheLine((0.0, 0.5, 0.9)), Clips((0.5, 2.0))).around(Candidate(0.1, 0.9)))
    8
    """

    first: Stage
    second: Stage

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        found = [each for one in (best, *self.first.around(best)) for each in (one, *self.second.around(one))]
        return tuple(found[1:])


def check_momenta(momenta: tuple[float, ...]) -> None:
    """Checks that momenta are distinct numbers in [0, 1), at least one."""
    _check_several(momenta=momenta)
    named = {f"momenta[{place}]": momentum for place, momentum in enumerate(momenta)}
    validate.between(0, 1, low_open=False, high_open=True, **named)


def check_factors(factors: tuple[float, ...]) -> None:
    """Checks that factors are distinct numbers above 0, at least one."""
    _check_several(factors=factors)
    validate.positive(**{f"factors[{place}]": factor for place, factor in enumerate(factors)})


def _check_several(**arguments: tuple[float, ...]) -> None:
    validate.instance(tuple, **arguments)
    for name, values in arguments.items():
        if not values or len(set(values)) < len(values):
            raise UsageError(f"{name} must be distinct numbers, at least one, got {validate.shown(values)}.")


MOMENTA = (0.0, 0.5, 0.9)
FACTORS = (0.5, 2.0)
_SECOND_MOMENT = 0.999


@runtime_checkable
class Optimizer(Protocol):
    """Makes a torch optimizer with a momentum, and the stages of its search."""

    def make(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer: ...

    def stages(self, momenta: tuple[float, ...], factors: tuple[float, ...]) -> tuple[Stage, Stage]:
        """The two stages of the rule clip-momentum."""
        ...


@dataclass(frozen=True)
class Sgd:
    """SGD with momentum. Stages: momentum at constant C / (1 - mu), then clipping norm.

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
    """Adam, whose momentum is the first beta. Stages: clipping norm, then momentum.

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
    """The stages of the rule clip-momentum for an optimizer. Projections, which have their own norms, are refused.

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
                f"the rule clip-momentum does not support projected gradients, got {type(encoding).__name__}: their "
                "clipping norms are those of the projection, and the clip of the plan is 1."
            )
        case Combined(first=first, second=second):
            _refuse_projections(first)
            _refuse_projections(second)


def _check(lr: float, weight_decay: float) -> None:
    validate.positive(lr=lr)
    validate.between(0, 1e6, weight_decay=weight_decay)


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
