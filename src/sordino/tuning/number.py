"""How many trials there are, drawn without looking at the data. Whoever sees what was drawn breaks the proof.

The distributions are those of Papernot and Steinke (2022). The price of a stage rises with the logarithm of the mean
for a negative binomial number, of which many are 1 and some are very large. A Poisson number is close to its mean, and
cheap as long as one trial is very private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sordino import validate
from sordino.accounting.selection import check_number_of_trials, halting_probability
from sordino.randomness import Stream

_NEXT_TO_NOTHING = 2.0**-70
_MOST = 500.0  # above, exp(-mean) soon is 0 in floating point


@runtime_checkable
class Number(Protocol):
    """A random number of trials."""

    @property
    def mean(self) -> float: ...

    @property
    def shape(self) -> float:
        """By which the event names the distribution."""
        ...

    def draw(self, randomness: Stream, step: int) -> int:
        """The number at this address."""
        ...


@dataclass(frozen=True)
class PoissonNumber:
    """Close to its mean. With a chance of exp(-mean) there is no trial at all.

    >>> from sordino.randomness import Key
    >>> PoissonNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    8
    """

    mean: float

    def __post_init__(self) -> None:
        validate.between(1, _MOST, mean=self.mean)

    @property
    def shape(self) -> float:
        return math.inf

    def draw(self, randomness: Stream, step: int) -> int:
        uniform, chance, number = _uniform(randomness, step), math.exp(-self.mean), 0
        while uniform >= chance and (chance > _NEXT_TO_NOTHING or number < self.mean):
            uniform -= chance
            number += 1
            chance *= self.mean / number
        return number


@dataclass(frozen=True)
class NegativeBinomialNumber:
    """At least 1. Shape 0 is the logarithmic distribution, 1 the geometric one; a smaller shape is cheaper.

    >>> from sordino.randomness import Key
    >>> NegativeBinomialNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    4
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        check_number_of_trials(self.mean, self.shape)

    def draw(self, randomness: Stream, step: int) -> int:
        gamma = halting_probability(self.mean, self.shape)
        uniform, number = _uniform(randomness, step), 1
        if gamma == 1:
            return number
        chance = (1 - gamma) / -math.log(gamma) if self.shape == 0 else self._first(gamma)
        while uniform >= chance > _NEXT_TO_NOTHING:
            uniform -= chance
            chance *= (1 - gamma) * (number + self.shape) / (number + 1)
            number += 1
        return number

    def _first(self, gamma: float) -> float:
        return self.shape * (1 - gamma) / math.expm1(-self.shape * math.log(gamma))


def _uniform(randomness: Stream, step: int) -> float:
    return float(randomness.uniforms(1, step=step)[0])
