"""Balls in bins: each unit joins exactly one of `bins` Gaussian steps per epoch, chosen at random.

Per epoch a unit turns N(0, s^2 I) into an even mixture of N(e_t, s^2 I) over the steps t (Chua et al. 2024). With x
from N(0, s^2 I) and y_t = exp((x_t - 1/2) / s^2), the ratio of the two densities is the mean of the y_t, which are
independent: its moments give the Renyi divergences of both directions (Feldman and Shenfeld 2025). Epochs add up.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from sordino.accounting.dominating import Reals

LARGEST_ORDER = 320
ROUNDING_OF_LOG = 1e-10
SMALLEST_MULTIPLIER_FOR_QUADRATURE = 0.2


def renyi_of_removing(multiplier: float, bins: int, orders: Reals) -> Reals:
    """Divergences of the data with the unit from the data without it, over one epoch. Infinite above the largest order.

    >>> bool(abs(renyi_of_removing(2.0, bins=1, orders=np.array([2.0]))[0] - 0.25) < 1e-8)  # a plain Gaussian
    True
    """
    log_moment = _log_moments(multiplier, bins)
    below = np.floor(orders).clip(1, LARGEST_ORDER - 1).astype(np.int64)
    # The logarithm of a moment is convex in the order, so the straight line between whole orders lies above it.
    share = orders - below
    between = (1 - share) * log_moment[below] + share * log_moment[below + 1]
    return np.where(orders <= LARGEST_ORDER, (between + ROUNDING_OF_LOG) / (orders - 1), math.inf)


@lru_cache(maxsize=64)
def _log_moments(multiplier: float, bins: int) -> Reals:
    """log E[(mean of y_t)^order] for the orders 0, 1, ..., `LARGEST_ORDER`.

    By the multinomial theorem the moment is order! / bins^order times the coefficient of z^order in f(z)^bins, where
    f(z) is the sum over j of E[y^j] z^j / j!, and E[y^j] = exp((j^2 - j) / (2 s^2)). This is the sum over partitions of
    Feldman and Shenfeld, gathered by powers. All coefficients are positive, so that logarithms lose nothing.
    """
    j = np.arange(LARGEST_ORDER + 1)
    power = (j * j - j) / (2 * multiplier**2) - gammaln(j + 1)
    total = np.where(j == 0, 0.0, -math.inf)
    remaining = bins
    while remaining:
        if remaining % 2:
            total = _multiplied(total, power)
        power = _multiplied(power, power)
        remaining //= 2
    return total + gammaln(j + 1) - j * math.log(bins)


def _multiplied(first: Reals, second: Reals) -> Reals:
    """The product of two power series given by the logarithms of their coefficients."""
    return np.array([_log_sum(first[: n + 1] + second[n::-1]) for n in range(len(first))])


def renyi_of_adding(multiplier: float, bins: int, orders: Reals) -> Reals:
    """Divergences of the data without the unit from the data with it, over one epoch.

    >>> bool(abs(renyi_of_adding(2.0, bins=1, orders=np.array([2.0]))[0] - 0.25) < 1e-8)
    True
    """
    # Jensen: the logarithm of a mean is at least the mean of the logarithms, which is Gaussian.
    by_jensen = orders / (2 * multiplier**2 * bins) + (1 - 1 / bins) / (2 * multiplier**2)
    if multiplier < SMALLEST_MULTIPLIER_FOR_QUADRATURE:
        return np.asarray(by_jensen)
    highest = 1 + min(255.0, 60 * multiplier)
    # Divergences grow with the order, so that the lowest order computed serves those below it.
    computed = np.clip(orders, 1.5, highest)
    exact = _exact_renyi_of_adding(multiplier, bins, tuple(np.unique(computed)))
    by_quadrature = np.array([exact[order] for order in computed])
    return np.where(orders <= highest, np.minimum(by_jensen, by_quadrature), by_jensen)


@lru_cache(maxsize=64)
def _exact_renyi_of_adding(multiplier: float, bins: int, orders: tuple[float, ...]) -> dict[float, float]:
    """From E[mean^-b] = (integral of u^(b - 1) E[exp(-u y / bins)]^bins du) / Gamma(b), where b = order - 1.

    The integral runs over log u, the expectation over x, both by the trapezoid rule, whose error is below rounding for
    integrands that are analytic and vanish at both ends. The ends follow from b: x is drawn as far down as -b / s.
    """
    b = np.array(orders) - 1
    lowest = -(14 + b.max() / multiplier)
    x = np.arange(lowest, 14, min(1.0, multiplier) / 8)
    log_y = x / multiplier - 1 / (2 * multiplier**2)
    log_weight = -(x**2) / 2 - math.log(math.sqrt(2 * math.pi) / (x[1] - x[0]))
    step = 0.05
    log_u = np.arange(-50 / b.min(), -log_y[0] + math.log(b.max() + 100), step)
    log_mean = np.array([_log_sum(log_weight - np.exp(np.minimum(each + log_y, 700.0))) for each in log_u])
    # Scaling u by the number of bins turns exp(-u y / bins) into exp(-u y).
    scaled = log_u + math.log(bins)
    log_moment = np.array([_log_sum(each * scaled + bins * log_mean) for each in b]) + math.log(step) - gammaln(b)
    rounded_up = np.maximum(log_moment, 0.0) + ROUNDING_OF_LOG + 1e-14 * bins
    return dict(zip(orders, rounded_up / b, strict=True))


def _log_sum(logarithms: Reals) -> float:
    """The logarithm of a sum; scipy's takes ten times as long over a few hundred numbers."""
    top = float(logarithms.max())
    return top + math.log(float(np.exp(logarithms - top).sum()))
