"""Lower bounds on epsilon from one training with many canaries.

The attacker guesses that the canaries with the highest scores were included and that those with the lowest were not,
and abstains in between. The numbers of guesses are fixed before the scores are seen, as the theorems require. A score
that ties with the first one that is not guessed could be on either side of the line. It counts as a wrong guess, which
is valid: breaking ties in any fixed order would find at least as many right guesses.

`OneRun` (Steinke, Nasr and Jagielski 2023), Theorem 5.2: if training is (epsilon, delta)-DP, each guess is right with
probability at most e^epsilon / (1 + e^epsilon), up to a probability of order delta. Nothing is assumed about canaries,
scores or the mechanism.

`FDp` (Mahloujifar, Melis and Chaudhuri 2025) tests a whole trade-off curve. (epsilon, delta)-DP bounds an attacker's
errors by one line, f-DP by the envelope of all such lines. The curve tested is that of a Gaussian mechanism with shift
mu; the largest mu that is contradicted is reported as its epsilon at delta. So it is a lower bound on epsilon only if
training has a Gaussian trade-off, and its `assumes` says so.
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
    """Outcome of guessing: `correct` of `guesses` were right; the other canaries were not guessed."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        validate.count(canaries=self.canaries)
        validate.count(at_most=self.canaries, guesses=self.guesses)
        validate.count(at_least=0, at_most=self.guesses, correct=self.correct)


@dataclass(frozen=True)
class Shares:
    """The fractions of the canaries that are guessed to be included and left out. The others are not guessed.

    >>> scores = Scores(np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, True, False, False]))
    >>> Shares(inside=0.25, outside=0.5).of(scores)
    Guesses(canaries=4, guesses=3, correct=3)
    >>> Shares(inside=0.5, outside=0).of(Scores(np.zeros(4), scores.included))  # ties count as wrong
    Guesses(canaries=4, guesses=2, correct=0)
    """

    inside: float
    outside: float

    def __post_init__(self) -> None:
        validate.between(0, 1, share_inside=self.inside, share_outside=self.outside)
        if not 0 < self.inside + self.outside <= 1:
            raise UsageError(
                f"inside and outside are fractions of the canaries and must sum to a value in (0, 1], "
                f"got {validate.shown(self.inside)} and {validate.shown(self.outside)}."
            )

    def of(self, scores: Scores) -> Guesses:
        inside = round(self.inside * scores.number)
        outside = min(round(self.outside * scores.number), scores.number - inside)
        if inside + outside == 0:
            fraction = self.inside + self.outside
            raise UsageError(f"{scores.number} canaries are too few to guess a fraction of {fraction} of them.")
        right = _right(scores.values, scores.included, inside) + _right(-scores.values, ~scores.included, outside)
        return Guesses(scores.number, inside + outside, right)


# Few candidates: the best of many on one half is often only the luckiest. Sampled steps reveal included canaries better
# than canaries that were left out, so that the first fraction is often the larger one.
_SHARES = ((0.05, 0.02), (0.05, 0.05), (0.1, 0.05), (0.1, 0.1), (0.2, 0.1), (0.2, 0.2), (0.5, 0.5))
CANDIDATES = tuple(Shares(inside, outside) for inside, outside in _SHARES)
FIXED = Shares(0.05, 0.05)  # if nothing is chosen: good for most epsilons, and best for none


def _right(values: NDArray[np.float64], is_right: NDArray[np.bool_], number: int) -> int:
    """How many of the `number` largest values are right, without those that tie with the next one."""
    if number == len(values):
        return int(is_right.sum())
    beyond = np.partition(values, -number - 1)[-number - 1]
    return int(is_right[values > beyond].sum())


_LARGEST_EPSILON = 40.0  # float64 cannot tell e^40 / (1 + e^40) from 1
_PRECISION = 1e-8


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Upper bound on the probability of at least `guesses.correct` right guesses under (epsilon, delta)-DP.

    With W ~ Bin(r, e^eps / (1 + e^eps)): P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i.

    >>> round(p_value(Guesses(canaries=1000, guesses=100, correct=95), 1.0, 1e-5), 9)
    0.000663914
    """
    right, probability = guesses.correct, float(expit(epsilon))
    at_least = 1.0 if right == 0 else float(bdtrc(right - 1, guesses.guesses, probability))
    if delta == 0 or right == 0:
        return at_least
    just_below = np.cumsum(_binomial(np.arange(right - 1, -1, -1), guesses.guesses, probability))
    worst = float((just_below / np.arange(1, right + 1)).max())
    return min(1.0, at_least + 2 * guesses.canaries * delta * worst)


@dataclass(frozen=True)
class OneRun:
    """The largest epsilon that the number of right guesses contradicts."""

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
        largest = brentq(
            lambda epsilon: p_value(guesses, epsilon, delta) - allowed, 0.0, _LARGEST_EPSILON, xtol=_PRECISION
        )
        return max(0.0, float(largest) - _PRECISION)


def _binomial(successes: NDArray[np.int64], trials: int, probability: float) -> NDArray[np.float64]:
    """The binomial probability mass, through logarithms so that it does not overflow."""
    log_coefficient = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
    log_mass = log_coefficient + xlogy(successes, probability) + xlog1py(trials - successes, -probability)
    mass: NDArray[np.float64] = np.exp(log_mass)
    return mass


GAUSSIAN_TRADE_OFF = "a Gaussian trade-off"
_LARGEST_MU = 20.0


def contradicts(guesses: Guesses, mu: float, significance: float) -> bool:
    """Whether this number of right guesses has probability below `significance` under mu-GDP.

    Algorithm 1 of the paper. It assumes the probability to be `significance` and goes down from `correct`. `right` and
    `wrong` are the expected fractions of canaries, guessed right and wrong, from outcomes with more than `below` right
    guesses; each step bounds from below what the next outcome must add. If the sum exceeds the fraction of canaries
    that is guessed, the assumed probability was too large.

    >>> contradicts(Guesses(1000, 100, 95), 0.5, 0.05), contradicts(Guesses(1000, 100, 95), 1.0, 0.05)
    (True, False)
    """
    canaries, number, correct = guesses.canaries, guesses.guesses, guesses.correct
    right, wrong = significance * correct / canaries, significance * (number - correct) / canaries
    for below in range(correct - 1, -1, -1):
        needed = max(wrong, float(ndtr(ndtri(right) - mu)))
        right = min(1.0, right + below / (number - below) * (needed - wrong))
        wrong = needed
        if right + wrong > number / canaries:  # the sum only grows from here on
            return True
    return False


@dataclass(frozen=True)
class FDp:
    """The epsilon at delta of the largest mu that the number of right guesses contradicts."""

    name: ClassVar[str] = "f-dp"
    assumes: ClassVar[str] = GAUSSIAN_TRADE_OFF

    def epsilon(self, guesses: Guesses, *, delta: float, confidence: float) -> float:
        """
        >>> round(FDp().epsilon(Guesses(1000, 100, 95), delta=1e-5, confidence=0.95), 6)
        3.3233
        """
        allowed = 1 - confidence
        low, high = 0.0, _LARGEST_MU
        if guesses.correct == 0 or not contradicts(guesses, low, allowed):
            return 0.0
        while high - low > 1e-8:
            middle = (low + high) / 2
            low, high = (middle, high) if contradicts(guesses, middle, allowed) else (low, middle)
        return GaussianCurve(low).epsilon(delta)
