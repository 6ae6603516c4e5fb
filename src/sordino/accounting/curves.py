"""Privacy curves: epsilon as a function of delta and back, and the bound on membership attacks that follows.

The curve of Gaussian mechanisms is known exactly (`GaussianCurve`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import erfcx, log_ndtr

SMALLEST_DELTA = 1e-300


class PrivacyCurve(Protocol):
    """All (epsilon, delta) pairs that one accountant proves for one event."""

    @property
    def name(self) -> str:
        """The accountant that proves this curve."""
        ...

    def epsilon(self, delta: float) -> float:
        """An epsilon that holds at `delta`: never negative, never NaN, infinite if nothing is proved."""
        ...

    def delta(self, epsilon: float) -> float:
        """A delta in [0, 1] that holds at `epsilon`."""
        ...


@runtime_checkable
class ManyDeltas(Protocol):
    """A curve that computes many deltas faster than one by one."""

    def deltas(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """The deltas at epsilons in rising order."""
        ...


def deltas_of(curve: PrivacyCurve, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """The deltas of a curve at epsilons in rising order.

    >>> deltas_of(GaussianCurve(1.0), np.array([0.0, 1.0])).round(3)
    array([0.383, 0.127])
    """
    if isinstance(curve, ManyDeltas):
        return curve.deltas(epsilons)
    return np.array([curve.delta(epsilon) for epsilon in epsilons.tolist()])


@dataclass(frozen=True)
class GaussianCurve:
    """The exact curve of the pair N(0, 1) and N(mu, 1). Every composition of Gaussians has one (Dong, Roth, Su 2019).

    `mu` is 0 if nothing is released, and infinite for a release without noise.

    >>> round(GaussianCurve(1.0).epsilon(1e-6), 9)
    4.886554117
    """

    mu: float
    name: str = "exact-gaussian"

    def epsilon(self, delta: float) -> float:
        if self.mu == 0:
            return 0.0
        if math.isinf(self.mu):
            return math.inf
        log_delta = math.log(delta)
        low, high = 0.0, self.mu**2 / 2 + self.mu * math.sqrt(-2 * log_delta)
        if self._log_delta(low) <= log_delta:
            return 0.0
        while (middle := (low + high) / 2) not in (low, high):
            low, high = (low, middle) if self._log_delta(middle) <= log_delta else (middle, high)
        return high * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        if self.mu == 0:
            return 0.0
        if math.isinf(self.mu):
            return 1.0
        return min(1.0, math.exp(self._log_delta(epsilon)))

    def _log_delta(self, epsilon: float) -> float:
        # Balle and Wang (2018), Theorem 8: delta = Phi(-x) - e^epsilon Phi(-y). As e^epsilon pdf(y) = pdf(x), this is
        # pdf(x) (R(x) - R(y)) with Mills' ratio R, which never underflows.
        x, y = epsilon / self.mu - self.mu / 2, epsilon / self.mu + self.mu / 2
        if x < -5:
            first, second = float(log_ndtr(-x)), epsilon + float(log_ndtr(-y))
            return first + math.log1p(-math.exp(second - first)) if second < first else -math.inf
        # R(x) - R(y) cancels for a small mu. For this the midpoint rule is exact to mu^2 / 12, and R'(t) = t R(t) - 1.
        middle = (x + y) / 2
        fall = _mills(x) - _mills(y) if self.mu > 1e-5 else self.mu * (1 - middle * _mills(middle))
        return -x * x / 2 - math.log(2 * math.pi) / 2 + math.log(fall) if fall > 0 else -math.inf


def _mills(x: float) -> float:
    return math.sqrt(math.pi / 2) * float(erfcx(x / math.sqrt(2)))


def best_true_positive_rate(curve: PrivacyCurve, false_positive_rate: float) -> float:
    """Upper bound on the true positive rate of any membership attack with this false positive rate.

    Each epsilon gives two bounds (Kairouz, Oh, Viswanath 2015): from the probability of an alarm with the unit present,
    and from the probability of no alarm with the unit absent. Each is valid by itself, so the search for the smallest
    one need not be exact.

    >>> from sordino.accounting.curves import GaussianCurve
    >>> round(best_true_positive_rate(GaussianCurve(1.0), 0.01), 4)  # exactly Phi(Phi^-1(0.01) + 1)
    0.0924
    """

    def bound(epsilon: float) -> float:
        delta = curve.delta(epsilon)
        present = math.exp(min(epsilon, 700)) * false_positive_rate + delta
        absent = 1 - math.exp(-epsilon) * (1 - false_positive_rate - delta)
        return min(present, absent, 1.0)

    widest = curve.epsilon(1e-6)
    if not 0 < widest < math.inf:
        return bound(0.0) if widest == 0 else 1.0
    searched = minimize_scalar(bound, bounds=(0.0, widest), method="bounded", options={"xatol": 1e-2 * widest})
    return min(bound(0.0), bound(float(searched.x)), bound(widest))  # `widest` is best for a pure guarantee
