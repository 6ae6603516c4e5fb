"""What is tried: a clip norm and a momentum, and ways to vary them around the best pair so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.clipping import ClipByNorm


@dataclass(frozen=True)
class Candidate:
    """A clip norm C and a momentum mu.

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
        """C / (1 - mu): how far one step's noise moves the weights in the end, per noise multiplier, with plain SGD."""
        return self.clip / (1 - self.momentum)

    @property
    def velocity_noise(self) -> float:
        """C / sqrt(1 - mu^2): how much noise the velocity holds at a time. It grows more slowly with the momentum."""
        return self.clip / math.sqrt(1 - self.momentum**2)


@runtime_checkable
class Stage(Protocol):
    """What is tried around the best candidate so far. The number of candidates does not depend on it."""

    def around(self, best: Candidate) -> tuple[Candidate, ...]: ...


@dataclass(frozen=True)
class AlongTheLine:
    """These momenta, each with the clip norm that keeps C / (1 - mu).

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
    """The same momentum with the clip norm times each of these factors: other values of C / (1 - mu)."""

    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        check_factors(self.factors)

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        return tuple(replace(best, clip=best.clip * factor) for factor in self.factors if factor != 1)


@dataclass(frozen=True)
class Momenta:
    """The same clip norm with each of these momenta."""

    momenta: tuple[float, ...]

    def __post_init__(self) -> None:
        check_momenta(self.momenta)

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        return tuple(replace(best, momentum=mu) for mu in self.momenta if mu != best.momentum)


@dataclass(frozen=True)
class Grid:
    """Two stages in one: the second around everything that the first would try. A stage has its price, however large.

    >>> len(Grid(AlongTheLine((0.0, 0.5, 0.9)), Clips((0.5, 2.0))).around(Candidate(0.1, 0.9)))
    8
    """

    first: Stage
    second: Stage

    def around(self, best: Candidate) -> tuple[Candidate, ...]:
        found = [each for one in (best, *self.first.around(best)) for each in (one, *self.second.around(one))]
        return tuple(found[1:])


def check_momenta(momenta: tuple[float, ...]) -> None:
    """Some numbers in [0, 1), each once."""
    _check_several(momenta=momenta)
    named = {f"momenta[{place}]": mu for place, mu in enumerate(momenta)}
    validate.between(0, 1, low_open=False, high_open=True, **named)


def check_factors(factors: tuple[float, ...]) -> None:
    """Some numbers above 0, each once."""
    _check_several(factors=factors)
    validate.positive(**{f"factors[{place}]": factor for place, factor in enumerate(factors)})


def _check_several(**arguments: tuple[float, ...]) -> None:
    validate.instance(tuple, **arguments)
    for name, values in arguments.items():
        if not values or len(set(values)) < len(values):
            raise UsageError(f"{name} must be different numbers, at least one, got {validate.shown(values)}.")
