"""The two errors of an attacker who says "in" from some score on: what they are at most, and what that is worth.

Here canaries count as independent of one another, which they are if each is scored by noise of its own: the white box
with orthogonal canaries, or one canary in each of many trainings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sordino.accounting.curves import GaussianCurve
from sordino.attacks.audit.f_dp import GAUSSIAN
from sordino.attacks.audit.intervals import largest_chance
from sordino.attacks.audit.scores import Scores

INDEPENDENT = "canaries that do not disturb one another"
Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """The chances of accusing one who was out and of missing one who was in, at most: arrays, one entry per cut."""

    false_positive: Rates
    false_negative: Rates


def errors_at(cuts: Rates, scores: Scores, confidence: float) -> Errors:
    """With each cut's canaries at or above it called "in". Either bound fails with a chance of (1 - confidence) / 2.

    >>> scores = Scores(np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, False, True, True]))
    >>> errors_at(np.array([2.5]), scores, 0.9).false_positive.round(4)  # 1 - sqrt(0.05)
    array([0.7764])
    """
    inside, outside = np.sort(scores.values[scores.included]), np.sort(scores.values[~scores.included])
    accused = len(outside) - np.searchsorted(outside, cuts, side="left")
    missed = np.searchsorted(inside, cuts, side="left")
    one_side = (1 - confidence) / 2
    return Errors(largest_chance(accused, len(outside), one_side), largest_chance(missed, len(inside), one_side))


class OfErrors(Protocol):
    """A lower bound on epsilon that follows from the two errors."""

    @property
    def name(self) -> str: ...

    @property
    def assumes(self) -> str: ...

    def strength(self, errors: Errors, delta: float) -> Rates:
        """For each cut, a number that rises with epsilon. Never negative."""
        ...

    def epsilon(self, strength: float, delta: float) -> float: ...


@dataclass(frozen=True)
class ClopperPearson:
    """What (epsilon, delta)-DP says of the errors (Kairouz, Oh and Viswanath 2015), both ways round."""

    name: ClassVar[str] = "clopper-pearson"
    assumes: ClassVar[str] = INDEPENDENT

    def strength(self, errors: Errors, delta: float) -> Rates:
        """Epsilon itself.

        >>> ClopperPearson().strength(Errors(np.array([0.1]), np.array([0.5])), 0.0).round(4)  # log 5
        array([1.6094])
        """
        one, other = errors.false_positive, errors.false_negative
        found: Rates = np.maximum(_log_ratio(1 - other - delta, one), _log_ratio(1 - one - delta, other))
        return found

    def epsilon(self, strength: float, delta: float) -> float:
        return strength


@dataclass(frozen=True)
class GaussianTradeOff:
    """The Gaussian mechanism with such errors (Nasr et al. 2023): a bound only if training has a Gaussian trade-off.

    Errors that add up to one or more are no better than guessing, and show nothing: mu is 0 there, not its size.
    """

    name: ClassVar[str] = "gaussian"
    assumes: ClassVar[str] = f"{GAUSSIAN}, {INDEPENDENT}"

    def strength(self, errors: Errors, delta: float) -> Rates:
        """The mu of that mechanism.

        >>> GaussianTradeOff().strength(Errors(np.array([0.5, 0.9]), np.array([0.1587, 0.9])), 1e-5).round(2)
        array([1., 0.])
        """
        found: Rates = np.maximum(-ndtri(errors.false_positive) - ndtri(errors.false_negative), 0.0)
        return found

    def epsilon(self, strength: float, delta: float) -> float:
        return GaussianCurve(strength).epsilon(delta)


def _log_ratio(above: Rates, below: Rates) -> Rates:
    found: Rates = np.log(np.maximum(above / below, 1.0))
    return found
