"""How far a share that was counted in some trials could be another one: exact intervals (Clopper and Pearson 1934)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binomtest

from sordino._input import validate

Counts = NDArray[np.int64]


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
    found = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return float(found.low), float(found.high)


def largest_chance(successes: int | Counts, trials: int | Counts, missed: float) -> NDArray[np.float64]:
    """The upper end, above which the chance lies at most with a chance of `missed`. Counts may be arrays.

    >>> largest_chance(np.array([0, 10]), 10, 0.05).round(4)
    array([0.2589, 1.    ])
    """
    failures = np.maximum(np.asarray(trials) - successes, 1)  # of none, the chance may be 1
    found: NDArray[np.float64] = np.where(
        np.asarray(successes) < trials, beta.ppf(1 - missed, np.asarray(successes) + 1.0, failures), 1.0
    )
    return found
