"""The ways to bound epsilon from below by scores. What has to be chosen is chosen on canaries that are not judged.

A threshold, or a number of guesses, that is chosen because it looks good on the same canaries makes the bound too large
more often than it says. So half of them are held out for the choice, and the theorem is applied to the others alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from sordino._input import validate
from sordino.accounting.answer import check_delta
from sordino.attacks.audit.errors_at import ClopperPearson, Errors, GaussianTradeOff, OfErrors, errors_at
from sordino.attacks.audit.f_dp import FDp
from sordino.attacks.audit.guesses import CANDIDATES, FIXED, Guesses, Shares
from sordino.attacks.audit.intervals import largest_chance
from sordino.attacks.audit.one_run import OneRun
from sordino.attacks.audit.scores import Scores


class Method(Protocol):
    """A lower bound on epsilon, too large with a chance of at most 1 - confidence, if what it `assumes` holds."""

    @property
    def name(self) -> str: ...

    @property
    def assumes(self) -> str: ...

    def bound(self, scores: Scores, randomness: np.random.Generator, *, delta: float, confidence: float) -> float:
        """With a random half of the canaries held out for what has to be chosen."""
        ...

    def ceiling(self, canaries: int, *, delta: float, confidence: float) -> float:
        """What would be found if nobody were taken for another: no audit with so many canaries shows more."""
        ...


class Named(Protocol):
    """A statistic by name, and what it takes for granted."""

    @property
    def name(self) -> str: ...

    @property
    def assumes(self) -> str: ...


class OfGuesses(Named, Protocol):
    """A lower bound on epsilon that follows from a number of right guesses."""

    def epsilon(self, guesses: Guesses, *, delta: float, confidence: float) -> float: ...


Statistic = TypeVar("Statistic", bound=Named)
Choice = TypeVar("Choice")


class _OnHalves(ABC, Generic[Statistic, Choice]):
    """Chooses on one half, and judges the other by what was chosen."""

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
        """What shows most on these canaries."""

    @abstractmethod
    def bound_at(self, choice: Choice, scores: Scores, *, delta: float, confidence: float) -> float:
        """All canaries are judged. The choice must have been made before anybody saw their scores."""


@dataclass(frozen=True)
class ByGuesses(_OnHalves[OfGuesses, Shares]):
    """Guesses who was in and who was out, and abstains where it is not sure. How often is chosen on the other half.

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
        """All canaries are judged at shares that are fixed here, once and for all."""
        return self.bound_at(FIXED, scores, delta=delta, confidence=confidence)

    def ceiling(self, canaries: int, *, delta: float, confidence: float) -> float:
        _check(delta, confidence)
        judged = canaries - canaries // 2
        return self.statistic.epsilon(Guesses(judged, judged, judged), delta=delta, confidence=confidence)


@dataclass(frozen=True)
class ByCut(_OnHalves[OfErrors, float]):
    """Calls canaries from a score on "in", and bounds both errors. The score is chosen on the other half.

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
        """Without an error, at the luckiest number of canaries that were out."""
        _check(delta, confidence)
        judged, one_side = canaries - canaries // 2, (1 - confidence) / 2
        outside = np.arange(1, max(2, judged))
        none = Errors(largest_chance(0, outside, one_side), largest_chance(0, judged - outside, one_side))
        return self.statistic.epsilon(float(self.statistic.strength(none, delta).max()), delta)


ONE_RUN, F_DP = ByGuesses(OneRun()), ByGuesses(FDp())
GAUSSIAN, CLOPPER_PEARSON = ByCut(GaussianTradeOff()), ByCut(ClopperPearson())
METHODS: dict[str, Method] = {method.name: method for method in (ONE_RUN, F_DP, GAUSSIAN, CLOPPER_PEARSON)}


def _check(delta: float, confidence: float) -> None:
    check_delta(delta, is_pure=False)
    validate.between(0.5, 1, low_open=True, high_open=True, confidence=confidence)
