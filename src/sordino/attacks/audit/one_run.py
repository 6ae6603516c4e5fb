"""A lower bound on epsilon from one training with many canaries (Steinke, Nasr and Jagielski 2023).

Theorem 5.2: if training is (epsilon, delta)-DP, each right guess is at best a toss of a coin that shows e^epsilon /
(1 + e^epsilon), up to a chance of order delta. Nothing is assumed about canaries, scores or the mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtrc, expit, gammaln, xlog1py, xlogy

from sordino.attacks.audit.guesses import Guesses

_LARGEST = 40.0  # e^40 in favour of a guess: a coin that float64 cannot tell from one that always shows
_PRECISION = 1e-8


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The chance of so many right guesses under (epsilon, delta)-DP, at most.

    With W ~ Bin(r, e^eps / (1 + e^eps)): P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i.

    >>> round(p_value(Guesses(canaries=1000, guesses=100, correct=95), 1.0, 1e-5), 9)
    0.000663914
    """
    right, chance = guesses.correct, float(expit(epsilon))
    at_least = 1.0 if right == 0 else float(bdtrc(right - 1, guesses.guesses, chance))
    if delta == 0 or right == 0:
        return at_least
    just_below = np.cumsum(_binomial(np.arange(right - 1, -1, -1), guesses.guesses, chance))
    worst = float((just_below / np.arange(1, right + 1)).max())
    return min(1.0, at_least + 2 * guesses.canaries * delta * worst)


@dataclass(frozen=True)
class OneRun:
    """The largest epsilon that so many right guesses contradict."""

    name: ClassVar[str] = "one-run"
    assumes: ClassVar[str] = "nothing"

    def epsilon(self, guesses: Guesses, *, delta: float, confidence: float) -> float:
        """
        >>> round(OneRun().epsilon(Guesses(1000, 100, 95), delta=1e-5, confidence=0.95), 6)
        2.165176
        """
        allowed = 1 - confidence
        if p_value(guesses, 0.0, delta) >= allowed:
            return 0.0
        found = brentq(lambda epsilon: p_value(guesses, epsilon, delta) - allowed, 0.0, _LARGEST, xtol=_PRECISION)
        return max(0.0, float(found) - _PRECISION)


def _binomial(successes: NDArray[np.int64], trials: int, chance: float) -> NDArray[np.float64]:
    ways = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
    found: NDArray[np.float64] = np.exp(ways + xlogy(successes, chance) + xlog1py(trials - successes, -chance))
    return found
