"""Lower bounds on epsilon from one training with many canaries.

Who is guessed to be in or out: so many of the highest scores, so many of the lowest, and nobody in between.

The numbers of guesses are fixed before the scores are seen: the theorems are stated for such. A score that ties with
one beyond the line could be on either side, so it is a guess, and counted as wrong: as if ties were broken by somebody
who wishes the audit ill. That is valid, because breaking them in any fixed order would find at least as many.

A lower bound on epsilon from one training with many canaries (Steinke, Nasr and Jagielski 2023).

Theorem 5.2: if training is (epsilon, delta)-DP, each right guess is at best a toss of a coin that shows e^epsilon /
(1 + e^epsilon), up to a chance of order delta. Nothing is assumed about canaries, scores or the mechanism.

A lower bound from one training for a whole trade-off curve (Mahloujifar, Melis and Chaudhuri 2025).

Where (epsilon, delta) is one line below which an attacker's errors cannot fall, f-DP is all of them. The curve that is
tested is that of a Gaussian mechanism with shift mu; the largest mu that is contradicted is stated as the epsilon that
it has at delta. So the bound is one on epsilon if training has a Gaussian trade-off, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import bdtrc, expit, gammaln, ndtr, ndtri, xlog1py, xlogy

from sordino._input import validate
from sordino.accounting.curves import GaussianCurve
from sordino.attacks.audit.scores import Scores
from sordino.errors import UsageError


@dataclass(frozen=True)
class Guesses:
    """`guesses` of `canaries` were guessed, of which `correct` were right."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        validate.count(canaries=self.canaries)
        validate.count(at_most=self.canaries, guesses=self.guesses)
        validate.count(at_least=0, at_most=self.guesses, correct=self.correct)


@dataclass(frozen=True)
class Shares:
    """Which share of the canaries is guessed to be in, and which out. The others are not guessed.

    >>> scores = Scores(np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, True, False, False]))
    >>> Shares(inside=0.25, outside=0.5).of(scores)
    Guesses(canaries=4, guesses=3, correct=3)
    >>> Shares(inside=0.5, outside=0).of(Scores(np.zeros(4), scores.included))  # nothing is known of ties
    Guesses(canaries=4, guesses=2, correct=0)
    """

    inside: float
    outside: float

    def __post_init__(self) -> None:
        validate.between(0, 1, share_inside=self.inside, share_outside=self.outside)
        if not 0 < self.inside + self.outside <= 1:
            raise UsageError(
                f"shares of guesses must add up to (0, 1], "
                f"got {validate.shown(self.inside)} and {validate.shown(self.outside)}."
            )

    def of(self, scores: Scores) -> Guesses:
        inside = round(self.inside * scores.number)
        outside = min(round(self.outside * scores.number), scores.number - inside)
        if inside + outside == 0:
            raise UsageError(f"{scores.number} canaries are too few to guess a share of {self.inside + self.outside}.")
        right = _right(scores.values, scores.included, inside) + _right(-scores.values, ~scores.included, outside)
        return Guesses(scores.number, inside + outside, right)


# Few, because the best of many on one half is often the luckiest. Sampled steps show who was in more than who was out.
_SHARES = ((0.05, 0.02), (0.05, 0.05), (0.1, 0.05), (0.1, 0.1), (0.2, 0.1), (0.2, 0.2), (0.5, 0.5))
CANDIDATES = tuple(Shares(inside, outside) for inside, outside in _SHARES)
FIXED = Shares(0.05, 0.05)  # where nothing is chosen: good at most epsilons, and best at none


def _right(values: NDArray[np.float64], is_right: NDArray[np.bool_], number: int) -> int:
    """How many of the first `number` by value are right, not counting those that tie with the one after them."""
    if number == len(values):
        return int(is_right.sum())
    beyond = np.partition(values, -number - 1)[-number - 1]
    return int(is_right[values > beyond].sum())


_LARGEST_LOG_ODDS = 40.0  # e^40 in favour of a guess: a coin that float64 cannot tell from one that always shows
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
        found = brentq(
            lambda epsilon: p_value(guesses, epsilon, delta) - allowed, 0.0, _LARGEST_LOG_ODDS, xtol=_PRECISION
        )
        return max(0.0, float(found) - _PRECISION)


def _binomial(successes: NDArray[np.int64], trials: int, chance: float) -> NDArray[np.float64]:
    ways = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
    found: NDArray[np.float64] = np.exp(ways + xlogy(successes, chance) + xlog1py(trials - successes, -chance))
    return found


GAUSSIAN_TRADE_OFF = "a Gaussian trade-off"
_LARGEST_EPSILON = 20.0


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
    assumes: ClassVar[str] = GAUSSIAN_TRADE_OFF

    def epsilon(self, guesses: Guesses, *, delta: float, confidence: float) -> float:
        """
        >>> round(FDp().epsilon(Guesses(1000, 100, 95), delta=1e-5, confidence=0.95), 6)
        3.3233
        """
        allowed = 1 - confidence
        low, high = 0.0, _LARGEST_EPSILON
        if guesses.correct == 0 or not contradicts(guesses, low, allowed):
            return 0.0
        while high - low > 1e-8:
            middle = (low + high) / 2
            low, high = (middle, high) if contradicts(guesses, middle, allowed) else (low, middle)
        return GaussianCurve(low).epsilon(delta)
