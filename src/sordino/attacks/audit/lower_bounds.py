"""Lower bounds on epsilon from the scores of canaries.

Methods by guesses (`ONE_RUN`, `F_DP`) count right guesses of which canaries were included. Methods by a threshold
(`GAUSSIAN`, `CLOPPER_PEARSON`) call every canary with a score at or above it included, and bound both error
probabilities by exact intervals (Clopper and Pearson 1934). These count canaries as independent, which they are if each
is scored by noise of its own: orthogonal canaries in the white box, or one canary in each of many trainings.

A threshold or a number of guesses that is chosen on the canaries that it is then applied to would make the bound wrong
more often than the confidence allows. So one half of the canaries is held out for the choice, and the theorem is
applied to the other half.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta, binomtest

from sordino._input import validate
from sordino.accounting.curves import GaussianCurve
from sordino.accounting.tightest import check_delta
from sordino.attacks.audit.one_run import CANDIDATES, FIXED, GAUSSIAN_TRADE_OFF, FDp, Guesses, OneRun, Shares
from sordino.attacks.audit.scores import Scores

Counts = NDArray[np.int64]


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """The exact interval for a success probability. Each end is wrong with probability at most (1 - confidence) / 2.

    A one-sided bound with this confidence is an end of the interval with confidence 2 * confidence - 1.

    >>> low, high = clopper_pearson(8, 10, 0.95)
    >>> round(low, 4), round(high, 4)
    (0.4439, 0.9748)
    """
    validate.count(trials=trials)
    validate.count(at_least=0, at_most=trials, successes=successes)
    validate.between(0, 1, low_open=True, high_open=True, confidence=confidence)
    interval = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def largest_chance(successes: int | Counts, trials: int | Counts, missed: float) -> NDArray[np.float64]:
    """Upper bound on a success probability, wrong with probability at most `missed`. Counts may be arrays.

    >>> largest_chance(np.array([0, 10]), 10, 0.05).round(4)
    array([0.2589, 1.    ])
    """
    failures = np.maximum(np.asarray(trials) - successes, 1)  # without a failure the bound is 1, see below
    bound: NDArray[np.float64] = np.where(
        np.asarray(successes) < trials, beta.ppf(1 - missed, np.asarray(successes) + 1.0, failures), 1.0
    )
    return bound


INDEPENDENT = "independent canaries"
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class ErrorBounds:
    """Upper bounds on both error probabilities: arrays with one entry per threshold."""

    false_positive: Rates
    false_negative: Rates


def errors_at(cuts: Rates, scores: Scores, confidence: float) -> ErrorBounds:
    """Bounds on the errors of calling canaries with a score of `cuts` or more included.

    Each of the two bounds is wrong with probability at most (1 - confidence) / 2.

    >>> scores = Scores(np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, False, True, True]))
    >>> errors_at(np.array([2.5]), scores, 0.9).false_positive.round(4)  # 1 - sqrt(0.05)
    array([0.7764])
    """
    inside, outside = np.sort(scores.values[scores.included]), np.sort(scores.values[~scores.included])
    accused = len(outside) - np.searchsorted(outside, cuts, side="left")
    missed = np.searchsorted(inside, cuts, side="left")
    one_side = (1 - confidence) / 2
    return ErrorBounds(largest_chance(accused, len(outside), one_side), largest_chance(missed, len(inside), one_side))


class OfErrors(Protocol):
    """A lower bound on epsilon that follows from bounds on the two error probabilities."""

    @property
    def name(self) -> str: ...

    @property
    def assumes(self) -> str: ...

    def strength(self, errors: ErrorBounds, delta: float) -> Rates:
        """For each threshold, a nonnegative measure that increases with epsilon. It is used to choose a threshold."""
        ...

    def epsilon(self, strength: float, delta: float) -> float:
        """The epsilon at `delta` that this strength proves."""
        ...


@dataclass(frozen=True)
class ClopperPearson:
    """The bound of (epsilon, delta)-DP on the two errors, in both directions (Kairouz, Oh and Viswanath 2015)."""

    name: ClassVar[str] = "clopper-pearson"
    assumes: ClassVar[str] = INDEPENDENT

    def strength(self, errors: ErrorBounds, delta: float) -> Rates:
        """Epsilon itself.

        >>> ClopperPearson().strength(ErrorBounds(np.array([0.1]), np.array([0.5])), 0.0).round(4)  # log 5
        array([1.6094])
        """
        fp, fn = errors.false_positive, errors.false_negative
        epsilons: Rates = np.maximum(_log_ratio(1 - fn - delta, fp), _log_ratio(1 - fp - delta, fn))
        return epsilons

    def epsilon(self, strength: float, delta: float) -> float:
        return strength


@dataclass(frozen=True)
class GaussianTradeOff:
    """The Gaussian mechanism with these errors (Nasr et al. 2023): a bound only if training has a Gaussian trade-off.

    Errors that sum to one or more are no better than guessing and show nothing, so mu is 0 there and not negative.
    """

    name: ClassVar[str] = "gaussian"
    assumes: ClassVar[str] = f"{GAUSSIAN_TRADE_OFF}, {INDEPENDENT}"

    def strength(self, errors: ErrorBounds, delta: float) -> Rates:
        """The parameter mu of that mechanism.

        >>> GaussianTradeOff().strength(ErrorBounds(np.array([0.5, 0.9]), np.array([0.1587, 0.9])), 1e-5).round(2)
        array([1., 0.])
        """
        mu: Rates = np.maximum(-ndtri(errors.false_positive) - ndtri(errors.false_negative), 0.0)
        return mu

    def epsilon(self, strength: float, delta: float) -> float:
        return GaussianCurve(strength).epsilon(delta)


def _log_ratio(above: Rates, below: Rates) -> Rates:
    logarithms: Rates = np.log(np.maximum(above / below, 1.0))
    return logarithms


class BoundMethod(Protocol):
    """A lower bound on epsilon that is wrong with probability at most 1 - confidence, if what it `assumes` holds."""

    @property
    def name(self) -> str: ...

    @property
    def assumes(self) -> str: ...

    def bound(self, scores: Scores, randomness: np.random.Generator, *, delta: float, confidence: float) -> float:
        """The lower bound from one random half of the canaries, with parameters chosen on the other half."""
        ...

    def ceiling(self, canaries: int, *, delta: float, confidence: float) -> float:
        """The bound if every guess were right: no audit with this number of canaries shows more."""
        ...


class NamedStatistic(Protocol):
    """A statistic with its name and its assumptions."""

    @property
    def name(self) -> str: ...

    @property
    def assumes(self) -> str: ...


class OfGuesses(NamedStatistic, Protocol):
    """A lower bound on epsilon that follows from the number of right guesses."""

    def epsilon(self, guesses: Guesses, *, delta: float, confidence: float) -> float: ...


Statistic = TypeVar("Statistic", bound=NamedStatistic)
Choice = TypeVar("Choice")


class _OnHalves(ABC, Generic[Statistic, Choice]):
    """Chooses a parameter on one half of the canaries, and applies it to the other half."""

    statistic: Statistic

    @property
    def name(self) -> str:
        return self.statistic.name

    @property
    def assumes(self) -> str:
        return self.statistic.assumes

    def bound(self, scores: Scores, randomness: np.random.Generator, *, delta: float, confidence: float) -> float:
        held_out, judged = scores.halves(randomness)
        chosen = self.chosen(held_out, delta=delta, confidence=confidence)
        return self.bound_at(chosen, judged, delta=delta, confidence=confidence)

    @abstractmethod
    def chosen(self, held_out: Scores, *, delta: float, confidence: float) -> Choice:
        """The parameter that gives the largest bound on these canaries."""

    @abstractmethod
    def bound_at(self, choice: Choice, scores: Scores, *, delta: float, confidence: float) -> float:
        """The bound from all canaries. `choice` must have been made without looking at their scores."""


@dataclass(frozen=True)
class ByGuesses(_OnHalves[OfGuesses, Shares]):
    """Guesses which canaries were included and which were not, and abstains in between (see `Shares`).

    >>> scores = Scores(np.arange(400.0), np.arange(400) >= 200)
    >>> round(ONE_RUN.bound(scores, np.random.default_rng(0), delta=1e-5, confidence=0.95), 2)
    3.44
    """

    statistic: OfGuesses

    def chosen(self, held_out: Scores, *, delta: float, confidence: float) -> Shares:
        return max(CANDIDATES, key=lambda shares: self.bound_at(shares, held_out, delta=delta, confidence=confidence))

    def bound_at(self, choice: Shares, scores: Scores, *, delta: float, confidence: float) -> float:
        _check(delta, confidence)
        return self.statistic.epsilon(choice.of(scores), delta=delta, confidence=confidence)

    def bound_without_split(self, scores: Scores, *, delta: float, confidence: float) -> float:
        """The bound from all canaries at the constant `FIXED`, for which no half has to be held out."""
        return self.bound_at(FIXED, scores, delta=delta, confidence=confidence)

    def ceiling(self, canaries: int, *, delta: float, confidence: float) -> float:
        _check(delta, confidence)
        judged = canaries - canaries // 2
        return self.statistic.epsilon(Guesses(judged, judged, judged), delta=delta, confidence=confidence)


@dataclass(frozen=True)
class ByCut(_OnHalves[OfErrors, float]):
    """Calls canaries with scores at or above a threshold included, and bounds both error probabilities.

    >>> scores = Scores(np.arange(400.0), np.arange(400) >= 200)
    >>> round(CLOPPER_PEARSON.bound(scores, np.random.default_rng(0), delta=1e-5, confidence=0.95), 2)
    3.3
    """

    statistic: OfErrors

    def chosen(self, held_out: Scores, *, delta: float, confidence: float) -> float:
        _check(delta, confidence)
        cuts = np.unique(held_out.values)
        return float(cuts[int(np.argmax(self.statistic.strength(errors_at(cuts, held_out, confidence), delta)))])

    def bound_at(self, choice: float, scores: Scores, *, delta: float, confidence: float) -> float:
        _check(delta, confidence)
        strength = self.statistic.strength(errors_at(np.array([choice]), scores, confidence), delta)
        return self.statistic.epsilon(float(strength[0]), delta)

    def ceiling(self, canaries: int, *, delta: float, confidence: float) -> float:
        """The bound without an error, at the most favorable number of canaries that were left out."""
        _check(delta, confidence)
        judged, one_side = canaries - canaries // 2, (1 - confidence) / 2
        outside = np.arange(1, max(2, judged))
        none = ErrorBounds(largest_chance(0, outside, one_side), largest_chance(0, judged - outside, one_side))
        return self.statistic.epsilon(float(self.statistic.strength(none, delta).max()), delta)


ONE_RUN, F_DP = ByGuesses(OneRun()), ByGuesses(FDp())
GAUSSIAN, CLOPPER_PEARSON = ByCut(GaussianTradeOff()), ByCut(ClopperPearson())
METHODS: dict[str, BoundMethod] = {method.name: method for method in (ONE_RUN, F_DP, GAUSSIAN, CLOPPER_PEARSON)}


def _check(delta: float, confidence: float) -> None:
    check_delta(delta, is_pure=False)
    validate.between(0.5, 1, low_open=True, high_open=True, confidence=confidence)
