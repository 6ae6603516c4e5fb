"""Randomized response, the dominating pair of pure differential privacy.

Randomized response says whether the unit is present, and lies with probability 1 / (1 + exp(epsilon)). The output of
each epsilon-private mechanism can be computed from its answer, in both directions (Kairouz, Oh, Viswanath 2015). So its
privacy loss, which has two values, is the worst case. If a unit joins a step with probability `rate`, a pair (P, Q)
becomes ((1 - rate) Q + rate P, Q) (Zhu, Dong, Wang 2022), whose loss has two values too.

Arrays of two elements are for the answers "present" and "absent", in this order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_expit, logsumexp

from sordino.accounting.dominating_pairs import Losses, Reals


@dataclass(frozen=True)
class RandomizedResponse:
    """The pair of randomized response, for a unit that joins with probability `rate`.

    If `present_above`, `upper` is the distribution for data with the unit, otherwise `lower` is. At rate 1 both choices
    have equal losses.

    >>> RandomizedResponse(epsilon=1.0, rate=1.0, present_above=True).losses(log_tail=-50.0).loss
    array([ 1., -1.])
    """

    epsilon: float
    rate: float
    present_above: bool

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        loss = np.maximum(self._loss, least)
        return Losses(loss, np.exp(self._log_upper), 0.0, float(loss.max()))

    @property
    def atoms(self) -> list[tuple[float, float]]:
        """The two losses, each with the logarithm of its probability."""
        return list(zip(self._loss.tolist(), self._log_upper.tolist(), strict=True))

    def renyi(self, orders: Reals) -> Reals:
        """The Renyi divergences of `upper` from `lower`, rounded up by far more than their rounding errors."""
        loss, log_lower = self._loss, self._log_upper - self._loss
        power = orders[:, None] * loss
        far = logsumexp(log_lower + power, axis=1)
        near = np.log1p(_above_tangent(orders[:, None], loss) @ np.exp(log_lower))
        return np.asarray(np.where(power.max(axis=1) > 30, far, near) * (1 + 1e-9) / (orders - 1))

    @property
    def _loss(self) -> Reals:
        return self._log_ratio if self.present_above else -self._log_ratio

    @property
    def _log_upper(self) -> Reals:
        log_absent = log_expit(np.array([-self.epsilon, self.epsilon]))
        return np.asarray(log_absent + self._log_ratio if self.present_above else log_absent)

    @property
    def _log_ratio(self) -> Reals:
        return np.array([log_mixed(self.rate, self.epsilon), log_mixed(self.rate, -self.epsilon)])


def log_mixed(rate: float, epsilon: float) -> float:
    """log(1 - rate + rate * exp(epsilon)): the log-ratio `epsilon` if the unit joins with probability `rate`.

    It is the epsilon of a Poisson-sampled step if the unit may be removed, and of a sample without replacement if the
    unit may be replaced (Balle, Barthe, Gaboardi 2018).

    >>> round(log_mixed(0.01, 1.0), 6)
    0.017037
    """
    if rate == 1:
        return epsilon
    if epsilon > 700:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + epsilon))
    change = rate * math.expm1(epsilon)
    return math.log1p(change) if change > -0.5 else math.log(1 - rate + rate * math.exp(epsilon))


def epsilon_of_replacing(rate: float, epsilon: float) -> float:
    """The epsilon of a Poisson-sampled step if the unit may be replaced. `epsilon` is that of a step without sampling.

    `epsilon` is for removal. Without the unit, the step draws from a distribution R. With the unit, it draws from
    (1 - rate) R + rate P, where P is between exp(-epsilon) R and exp(epsilon) R for any data of the unit. So the ratio
    of two such mixtures is at most the ratio of these two ends.

    >>> epsilon_of_replacing(1.0, 0.5)
    1.0
    """
    return log_mixed(rate, epsilon) - log_mixed(rate, -epsilon)


def _above_tangent(order: Reals, log_ratio: Reals) -> Reals:
    """ratio^order - 1 - order * (ratio - 1), which has the same mean under `lower` as ratio^order - 1.

    It is never negative, so that nothing cancels in the mean. Close to a ratio of 1, it is bounded by the second
    derivative at 1 or at the ratio. Not for values of ratio^order above exp(30).
    """
    change = np.expm1(np.minimum(log_ratio, 31.0))
    direct = np.expm1(np.minimum(order * log_ratio, 31.0)) - order * change
    curved = order * (order - 1) / 2 * change**2 * np.exp(np.clip((order - 2) * log_ratio, 0.0, 1.0))
    return np.where(np.abs(order * change) < 1e-5, curved, np.maximum(direct, 0.0))
