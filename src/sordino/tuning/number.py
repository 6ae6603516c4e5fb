"""How many trials there are, drawn without looking at the data. Whoever sees what was drawn breaks the proof.

The distributions are those of Papernot and Steinke (2022). The price of a stage rises with the logarithm of the mean
for a negative binomial number, of which many are 1 and some are very large. A Poisson number is close to its mean, and
cheap as long as one trial is very private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sordino._input import validate
from sordino.accounting.selection import check_number_of_trials, halting_probability
from sordino.kernel.randomness import Stream

_NEXT_TO_NOTHING = 2.0**-70
_LARGEST_SHAPE = 1e6
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

    >>> from sordino.kernel.randomness import Key
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

    >>> from sordino.kernel.randomness import Key
    >>> NegativeBinomialNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    4
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        validate.between(0, _LARGEST_SHAPE, shape=self.shape)  # beyond, it is Poisson, which has a class of its own
        check_number_of_trials(self.mean, self.shape)

    def draw(self, randomness: Stream, step: int) -> int:
        gamma = halting_probability(self.mean, self.shape)
        uniform, number = _uniform(randomness, step), 1
        if gamma == 1:
            return number
        logarithm = self._logarithm_of_one(gamma)
        while uniform >= (chance := math.exp(logarithm)) and (chance > _NEXT_TO_NOTHING or number < self.mean):
            uniform -= chance
            logarithm += math.log((1 - gamma) * (number + self.shape) / (number + 1))
            number += 1
        return number

    def _logarithm_of_one(self, gamma: float) -> float:
        """Of the chance of 1, which is too small for floating point where the shape is large. Later ones are not."""
        if self.shape == 0:
            return math.log((1 - gamma) / -math.log(gamma))
        of_none = self.shape * math.log(gamma)  # the chance of 0, which is cut off
        return math.log(self.shape * (1 - gamma)) + of_none - math.log(-math.expm1(of_none))


def _uniform(randomness: Stream, step: int) -> float:
    return float(randomness.uniforms(1, step=step)[0])
