"""What follows from the epsilon of each step alone, where every step is pure: sums, and the law of large numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dp_accounting.dp_event import (
    DpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from sordino.accounting.curves import PrivacyCurve
from sordino.accounting.events import PureDpEvent, flatten
from sordino.accounting.randomized_response import log_mixed
from sordino.accounting.visible import Sight


@dataclass(frozen=True)
class PureComposition:
    """The curve of randomized response at `total`, the sum of all epsilons. It alone proves something at delta 0.

    >>> PureComposition(2.0).epsilon(0.0), PureComposition(2.0).delta(2.0)
    (2.0, 0.0)
    """

    total: float
    name: str = "pure-composition"

    def epsilon(self, delta: float) -> float:
        if delta == 0:
            return self.total
        left = -delta * (1 + math.exp(-self.total))
        return min(self.total, max(0.0, (self.total + math.log1p(left)) * (1 + 1e-12))) if left > -1 else 0.0

    def delta(self, epsilon: float) -> float:
        return max(0.0, -math.expm1(epsilon - self.total) / (1 + math.exp(-self.total)))


@dataclass(frozen=True)
class AdvancedComposition:
    """Dwork, Rothblum, Vadhan (2010): a sum of bounded privacy losses stays near its mean.

    `mean` is at most the sum of epsilon * tanh(epsilon / 2), the mean loss of randomized response (Kairouz, Oh,
    Viswanath 2015), and `squares` the sum of all epsilon^2, in Hoeffding's and Azuma's inequality.

    >>> round(AdvancedComposition(mean=0.5, squares=1.0).epsilon(1e-5), 3)
    5.299
    """

    mean: float
    squares: float
    name: str = "advanced-composition"

    def epsilon(self, delta: float) -> float:
        return (self.mean + math.sqrt(-2 * self.squares * math.log(delta))) * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        above = epsilon - self.mean
        return min(1.0, math.exp(-(above**2) / (2 * self.squares)) * (1 + 1e-9)) if above > 0 else 1.0


def pure_curves(sights: Iterable[tuple[Sight, int]]) -> list[PrivacyCurve]:
    """Both curves of a composition in which every step is pure, and none of any other.

    >>> [curve.name for curve in pure_curves([(Sight(PureDpEvent(10.0)), 100)])]
    ['pure-composition', 'advanced-composition']
    """
    steps = []
    for sight, count in sights:
        epsilon = _epsilon_of(sight.event)
        if epsilon is None:
            return []
        steps.append((epsilon, count))
    total = math.fsum(count * epsilon for epsilon, count in steps)
    mean = math.fsum(count * epsilon * math.tanh(epsilon / 2) for epsilon, count in steps)
    squares = math.fsum(count * epsilon * epsilon for epsilon, count in steps)
    return [PureComposition(total), AdvancedComposition(mean, squares)] if squares > 0 else [PureComposition(total)]


def is_pure(event: DpEvent) -> bool:
    """Whether every release in an event is pure, so that its guarantee may have a delta of 0.

    >>> is_pure(PureDpEvent(1.0))
    True
    """
    return all(_is_pure(part.mechanism) for part in flatten(event))


def _is_pure(mechanism: DpEvent) -> bool:
    match mechanism:
        case PoissonSampledDpEvent(event=release) | SampledWithoutReplacementDpEvent(event=release):
            return _is_pure(release)
        case _:
            return isinstance(mechanism, PureDpEvent | LaplaceDpEvent)


def _epsilon_of(event: DpEvent) -> float | None:
    match event:
        case PureDpEvent(noise_multiplier=multiplier) | LaplaceDpEvent(noise_multiplier=multiplier):
            return float(1 / multiplier)
        case PoissonSampledDpEvent(sampling_probability=rate, event=release):
            epsilon = _epsilon_of(release)
            return None if epsilon is None else log_mixed(rate, epsilon)
        case _:
            return None
