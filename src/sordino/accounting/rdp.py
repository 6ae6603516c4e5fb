"""The second accountant: Renyi differential privacy (RDP). It is looser than PLD, but quick, and has no lower limit.

Poisson sampling is computed here, because the series of dp_accounting loses all digits of a tiny divergence, has errors
of up to 7 % at low orders, and does not converge there for a high rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from scipy.special import gammaln, logsumexp

from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.balls_in_bins import renyi_of_adding, renyi_of_removing
from sordino.accounting.dominating_pairs import Reals
from sordino.accounting.events import PureDpEvent, RandomAllocationDpEvent, named
from sordino.accounting.randomized_response import RandomizedResponse
from sordino.errors import UnsupportedEvent

_LOW_ORDERS = [1 + x / 10 for x in range(1, 100) if x % 10]
_WHOLE_ORDERS = [*range(2, 64), *(round(64 * 2 ** (x / 4)) for x in range(33))]
ORDERS: Reals = np.array(sorted(_LOW_ORDERS + _WHOLE_ORDERS), dtype=np.float64)
_IS_WHOLE = ORDERS == np.floor(ORDERS)
SMALLEST_MULTIPLIER_FOR_LOW_ORDERS = 0.05


@dataclass(frozen=True)
class RdpCurve:
    """The privacy curve that follows from the Renyi divergences at `ORDERS`, in both directions.

    >>> curve = RdpCurve.of([(AccountantView(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))), 10_000)])
    >>> round(curve.epsilon(1e-5), 2)
    6.71
    """

    removing: Reals
    adding: Reals
    name: str = "rdp"

    @classmethod
    def of(cls, views: Iterable[tuple[AccountantView, int]], name: str = "rdp") -> RdpCurve:
        removing, adding = np.zeros_like(ORDERS), np.zeros_like(ORDERS)
        for view, count in views:
            there, back = renyi(view)
            removing, adding = removing + count * there, adding + count * back
        return cls(removing, adding, name)

    def epsilon(self, delta: float) -> float:
        return max(_epsilon(divergences, delta) for divergences in (self.removing, self.adding))

    def delta(self, epsilon: float) -> float:
        return max(_delta(divergences, epsilon) for divergences in (self.removing, self.adding))


def renyi(view: AccountantView) -> tuple[Reals, Reals]:
    """The Renyi divergences of one mechanism in both directions. They are infinite at orders that are not covered."""
    match view.event:
        case GaussianDpEvent(noise_multiplier=multiplier) if multiplier > 0:
            divergences = ORDERS / (2 * multiplier**2)
        case PoissonSampledDpEvent(sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=multiplier)):
            # Mironov, Talwar, Zhang (2019): removal is the worse direction.
            divergences = _poisson(rate, multiplier)
        case LaplaceDpEvent() | SampledWithoutReplacementDpEvent():
            divergences = _from_dp_accounting(view)
        case RandomAllocationDpEvent(noise_multiplier=multiplier, bins=bins):
            return renyi_of_removing(multiplier, bins, ORDERS), renyi_of_adding(multiplier, bins, ORDERS)
        case PureDpEvent(noise_multiplier=multiplier):
            divergences = RandomizedResponse(1 / multiplier, 1.0, present_above=True).renyi(ORDERS)
        case PoissonSampledDpEvent(sampling_probability=rate, event=PureDpEvent(noise_multiplier=multiplier)):
            there = RandomizedResponse(1 / multiplier, rate, present_above=True)
            return there.renyi(ORDERS), replace(there, present_above=False).renyi(ORDERS)
        case _:
            raise UnsupportedEvent(f"Renyi differential privacy does not cover {named(view.event)}.")
    return divergences, divergences


@lru_cache(maxsize=256)  # one step of a run is needed many times, for different numbers of steps
def _poisson(rate: float, multiplier: float) -> Reals:
    log_excess = np.full_like(ORDERS, math.inf)
    log_excess[_IS_WHOLE] = [_log_excess_at_whole(int(order), rate, multiplier) for order in ORDERS[_IS_WHOLE]]
    if multiplier >= SMALLEST_MULTIPLIER_FOR_LOW_ORDERS:
        log_excess[~_IS_WHOLE] = [_log_excess_at_any(order, rate, multiplier) for order in ORDERS[~_IS_WHOLE]]
    # log(1 + excess), rounded up by far more than its rounding errors.
    log_moment = np.where(log_excess > 30, log_excess + 1e-13, np.log1p(np.exp(np.minimum(log_excess, 30.0))))
    divergences = np.asarray(log_moment * (1 + 1e-9) / (ORDERS - 1))
    divergences.flags.writeable = False
    return divergences


def _log_excess_at_whole(order: int, rate: float, multiplier: float) -> float:
    """log(A - 1), where A is the mean of (ratio of densities)^order under the data without the unit.

    A is the mean of exp((i^2 - i) / (2 multiplier^2)) over a binomial i (Mironov, Talwar, Zhang 2019).
    If 1 is subtracted from each term, all terms are positive, so that nothing cancels when A is close to 1.
    """
    i = np.arange(2, order + 1)
    log_weight = gammaln(order + 1) - gammaln(i + 1) - gammaln(order - i + 1)
    log_weight += i * math.log(rate) + (order - i) * math.log1p(-rate)
    return float(logsumexp(log_weight + _log_expm1((i * i - i) / (2 * multiplier**2))))


def _log_excess_at_any(order: float, rate: float, multiplier: float) -> float:
    """log(A - 1) by the trapezoid rule over x from N(0, multiplier^2), for orders up to about 11.

    With u = ratio - 1, whose mean is 0, the excess is the mean of (1 + u)^order - 1 - order * u, never negative.
    The ratio has no zero within pi * multiplier^2 of the real line, which determines the step size.
    """
    step = min(multiplier / 8, multiplier**2 / 2)
    x = np.arange(-14 * multiplier, order + 14 * multiplier, step)
    exponent = (x - 0.5) / multiplier**2
    u = rate * np.expm1(np.minimum(exponent, 30.0))
    log_ratio = np.where(exponent > 30, np.logaddexp(math.log1p(-rate), math.log(rate) + exponent), np.log1p(u))
    power = order * log_ratio
    close = np.expm1(np.minimum(power, 30.0)) - order * u
    log_term = np.where(power > 30, power, np.log(np.maximum(close, 1e-300)))
    log_density = -((x / multiplier) ** 2) / 2 + math.log(step / (multiplier * math.sqrt(2 * math.pi)))
    return float(logsumexp(log_density + log_term))


def _log_expm1(x: Reals) -> Reals:
    return np.where(x > 30, x, np.log(np.expm1(np.minimum(x, 30.0))))


def _from_dp_accounting(view: AccountantView) -> Reals:
    """Divergences at integer orders up to 512. Other orders would gain little for these mechanisms, and are slow."""
    divergences = np.full_like(ORDERS, math.inf)
    covered = _IS_WHOLE & (ORDERS <= 512)
    accountant = RdpAccountant(list(ORDERS[covered]), view.relation)
    accountant.compose(view.event)
    divergences[covered] = accountant.rdp
    return divergences


def _epsilon(divergences: Reals, delta: float) -> float:
    """The smallest epsilon over all orders (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    known = np.isfinite(divergences)
    if not known.any():
        return math.inf
    order, divergence = ORDERS[known], divergences[known]
    # A total variation of at most sqrt(1 - exp(-KL)) (Bretagnolle and Huber 1979), and KL is at most any divergence.
    if -math.expm1(-float(divergence.min())) <= delta**2:
        return 0.0
    epsilon = divergence + np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1)
    return max(0.0, float(epsilon.min()))


def _delta(divergences: Reals, epsilon: float) -> float:
    known = np.isfinite(divergences)
    if not known.any():
        return 1.0
    order, divergence = ORDERS[known], divergences[known]
    log_delta = (order - 1) * (divergence - epsilon + np.log1p(-1 / order)) - np.log(order)
    total_variation = math.sqrt(-math.expm1(-float(divergence.min())))
    return min(1.0, total_variation, math.exp(min(0.0, float(log_delta.min()))))
