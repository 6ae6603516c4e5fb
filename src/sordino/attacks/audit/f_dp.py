"""A lower bound from one training for a whole trade-off curve (Mahloujifar, Melis and Chaudhuri 2025).

Where (epsilon, delta) is one line below which an attacker's errors cannot fall, f-DP is all of them. The curve that is
tested is that of a Gaussian mechanism with shift mu; the largest mu that is contradicted is stated as the epsilon that
it has at delta. So the bound is one on epsilon if training has a Gaussian trade-off, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scipy.special import ndtr, ndtri

from sordino.accounting.curves import GaussianCurve
from sordino.attacks.audit.guesses import Guesses

GAUSSIAN = "a Gaussian trade-off"
_LARGEST = 20.0


def contradicts(guesses: Guesses, mu: float, significance: float) -> bool:
    """Whether so many right guesses have a chance below `significance` under mu-GDP.

    Algorithm 1 of the paper: `right` and `wrong` are the shares of guesses, per canary, beyond each number of right
    guesses; a step down bounds what the number below must add. If all of it were more than there are guesses, the
    chance that was assumed at the start was too large.

    >>> contradicts(Guesses(1000, 100, 95), 0.5, 0.05), contradicts(Guesses(1000, 100, 95), 1.0, 0.05)
    (True, False)
    """
    canaries, number, correct = guesses.canaries, guesses.guesses, guesses.correct
    right, wrong = significance * correct / canaries, significance * (number - correct) / canaries
    for below in range(correct - 1, -1, -1):
        needed = max(wrong, float(ndtr(ndtri(right) - mu)))
        right = min(1.0, right + below / (number - below) * (needed - wrong))
        wrong = needed
        if right + wrong > number / canaries:  # and grows from here on
            return True
    return False


@dataclass(frozen=True)
class FDp:
    """The epsilon of the largest mu that so many right guesses contradict."""

    name: ClassVar[str] = "f-dp"
    assumes: ClassVar[str] = GAUSSIAN

    def epsilon(self, guesses: Guesses, *, delta: float, confidence: float) -> float:
        """
        >>> round(FDp().epsilon(Guesses(1000, 100, 95), delta=1e-5, confidence=0.95), 6)
        3.3233
        """
        allowed = 1 - confidence
        low, high = 0.0, _LARGEST
        if guesses.correct == 0 or not contradicts(guesses, low, allowed):
            return 0.0
        while high - low > 1e-8:
            middle = (low + high) / 2
            low, high = (middle, high) if contradicts(guesses, middle, allowed) else (low, middle)
        return GaussianCurve(low).epsilon(delta)
