"""How far a share that was counted in some trials could be another one: exact intervals (Clopper and Pearson 1934)."""

from __future__ import annotations

from scipy.special import betaincinv

from sordino import validate


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Both ends for the chance of a success. Each is missed with a chance of at most (1 - confidence) / 2.

    A bound to one side with this confidence is an end of the interval with confidence 2 * confidence - 1.

    >>> low, high = clopper_pearson(8, 10, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.4439, 0.9748)
    """
    validate.count(trials=trials)
    validate.count(at_least=0, at_most=trials, successes=successes)
    validate.between(0, 1, low_open=True, high_open=True, confidence=confidence)
    missed = (1 - confidence) / 2
    low = float(betaincinv(successes, trials - successes + 1, missed)) if successes else 0.0
    high = float(betaincinv(successes + 1, trials - successes, 1 - missed)) if successes < trials else 1.0
    return low, high
