"""What a privacy curve says about membership attacks."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from sordino.accounting.curves import PrivacyCurve


def best_true_positive_rate(curve: PrivacyCurve, false_positive_rate: float) -> float:
    """The largest detection rate of any attack with this false alarm rate that the curve leaves possible.

    Every epsilon bounds it twice (Kairouz, Oh, Viswanath 2015): by what is more likely with the unit present, and by
    what is less likely with it absent. Each bound holds by itself, so the search for the best one need not be exact.

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
    return min(bound(0.0), bound(float(searched.x)), bound(widest))  # a pure guarantee is best used at its end
