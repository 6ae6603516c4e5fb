"""Accountants of pure differential privacy.

* `PureComposition` and `AdvancedComposition` use the epsilon of each step only: the sum of all epsilons, and the
  concentration of the total loss around its mean.
* `Binomial` is the exact composition of equal pure steps. The privacy loss of randomized response has two values, so
  the total loss is a function of how often the higher one occurs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from scipy.special import gammaln

from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.curves import PrivacyCurve
from sordino.accounting.events import PureDpEvent, flatten
from sordino.accounting.loss_grid import DeltaBounds
from sordino.accounting.randomized_response import RandomizedResponse, log_mixed


@dataclass(frozen=True)
class PureComposition:
    """The curve of randomized response at `total`, the sum of all epsilons. Only this curve has an epsilon at delta 0.

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


def pure_curves(views: Iterable[tuple[AccountantView, int]]) -> list[PrivacyCurve]:
    """Both curves of a composition in which all steps are pure. An empty list for any other composition.

    >>> [curve.name for curve in pure_curves([(AccountantView(PureDpEvent(10.0)), 100)])]
    ['pure-composition', 'advanced-composition']
    """
    steps = []
    for view, count in views:
        epsilon = _epsilon_of(view.event)
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


MOST_EXACT_STEPS = 10**6


@dataclass(frozen=True)
class Binomial:
    """One direction of `steps` equal randomized responses, composed exactly, without a grid.

    >>> three = Binomial(RandomizedResponse(1.0, 1.0, present_above=True), steps=3)
    >>> round(three.delta(2.0), 6)  # three true answers, of probability (e / (1 + e))^3, times 1 - exp(2 - 3)
    0.246977
    """

    response: RandomizedResponse
    steps: int
    name: str = "pld"

    def epsilon(self, delta: float) -> float:
        return self._composed.epsilon(delta) * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        return self._composed.delta_at(epsilon)

    @cached_property
    def _composed(self) -> DeltaBounds:
        (low, log_rare), (high, log_often) = sorted(self.response.atoms)
        k = np.arange(self.steps + 1, dtype=np.float64)  # number of times that the higher loss occurs
        loss = low * self.steps + (high - low) * k
        log_binomial = gammaln(self.steps + 1) - gammaln(k + 1) - gammaln(self.steps - k + 1)
        log_upper = log_binomial + k * log_often + (self.steps - k) * log_rare
        # delta[k - 1] - delta[k] = (1 - exp(low - high)) * exp(loss[k]) * (probability of k or more under `lower`).
        log_lower_tail = np.logaddexp.accumulate((log_upper - loss)[::-1])[::-1]
        falls = -math.expm1(low - high) * np.exp(loss + log_lower_tail)
        delta = np.append(np.cumsum(falls[:0:-1])[::-1], 0.0)
        # Logarithms of factorials have relative errors of up to 1e-15, and all other terms smaller ones.
        rounded_up = 1 + 1e-9 + 1e-15 * float(gammaln(self.steps + 1))
        return DeltaBounds(high - low, float(loss[0]), np.minimum(delta * rounded_up, 1.0))
