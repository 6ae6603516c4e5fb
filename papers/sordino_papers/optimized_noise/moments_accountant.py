"""The moments accountant of 2016, to show how much Gaussian noise a target required then.

Abadi et al. (2016), Theorem 2: log moments alpha(l) of integer orders l up to 32 add up over steps, and the tail bound
gives delta = min over l of exp(steps * alpha(l) - l * epsilon). It is valid but not tight.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.rdp import ORDERS, renyi
from sordino.errors import UsageError
from sordino.kernel.sampling import Poisson

LARGEST_MOMENT = 32
_TOLERANCE = 1e-6


def epsilon_of_2016(sampler: Poisson, noise_multiplier: float, delta: float) -> float:
    """Epsilon of Poisson sampling with this noise, by the accountant of 2016.

    >>> round(epsilon_of_2016(Poisson(rate=0.01, steps=10_000), 4.0, 1e-5), 2)  # section 3.2 there: 1.26
    1.26
    """
    release = GaussianDpEvent(noise_multiplier)
    divergences, _ = renyi(
        AccountantView(release if sampler.rate == 1 else PoissonSampledDpEvent(sampler.rate, release))
    )
    moments = np.arange(1, LARGEST_MOMENT + 1)
    per_step = moments * divergences[np.searchsorted(ORDERS, moments + 1)]
    return float(((sampler.steps * per_step - math.log(delta)) / moments).min())


def least_epsilon_of_2016(delta: float) -> float:
    """Smallest epsilon of this accountant at any noise: the tail bound at the largest moment.

    >>> round(least_epsilon_of_2016(1e-5), 3)
    0.36
    """
    return -math.log(delta) / LARGEST_MOMENT


def noise_of_2016(sampler: Poisson, *, epsilon: float, delta: float) -> float:
    """Smallest noise multiplier that meets the target with this accountant."""
    if epsilon <= least_epsilon_of_2016(delta):
        allowed = f"above {least_epsilon_of_2016(delta):.4g}"
        raise UsageError(f"epsilon must be {allowed} for the accounting of 2016 at delta {delta:g}, got {epsilon!r}.")
    low, high = 0.1, 1.0
    while epsilon_of_2016(sampler, high, delta) > epsilon:
        low, high = high, 2 * high
    while high / low > 1 + _TOLERANCE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon_of_2016(sampler, middle, delta) <= epsilon else (middle, high)
    return high
