"""One pure step, again and again: its privacy loss has two values, so that the total loss is a count of one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from sordino.accounting.randomized_response import RandomizedResponse
from sordino.accounting.tilted import Composed

MOST_EXACT_STEPS = 10**6


@dataclass(frozen=True)
class Binomial:
    """One direction of `steps` times the same randomized response, with nothing lost to a grid.

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
    def _composed(self) -> Composed:
        (low, log_rare), (high, log_often) = sorted(self.response.atoms)
        k = np.arange(self.steps + 1, dtype=np.float64)  # how often the higher loss came
        loss = low * self.steps + (high - low) * k
        log_ways = gammaln(self.steps + 1) - gammaln(k + 1) - gammaln(self.steps - k + 1)
        log_upper = log_ways + k * log_often + (self.steps - k) * log_rare
        # delta[k - 1] - delta[k] = (1 - exp(low - high)) * exp(loss[k]) * (probability of k or more under `lower`).
        log_lower_tail = np.logaddexp.accumulate((log_upper - loss)[::-1])[::-1]
        falls = -math.expm1(low - high) * np.exp(loss + log_lower_tail)
        delta = np.append(np.cumsum(falls[:0:-1])[::-1], 0.0)
        # Logarithms of factorials are off by up to 1e-15 of themselves, and everything else by less.
        rounded_up = 1 + 1e-9 + 1e-15 * float(gammaln(self.steps + 1))
        return Composed(high - low, float(loss[0]), np.minimum(delta * rounded_up, 1.0))
