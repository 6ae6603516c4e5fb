"""ROC of membership scores: detection rates at low false positive rates, and the area under the curve."""

from __future__ import annotations

from dataclasses import dataclass
from math import log10, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino._input import validate
from sordino.attacks.audit.lower_bounds import clopper_pearson
from sordino.errors import UsageError

Numbers = NDArray[np.float64]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Detection:
    """Detection at one threshold, chosen so that the false positive rate is at most `allowed`.

    `found` is the true positive rate, `low` and `high` are its 95 % interval at this threshold (Clopper and Pearson
    1934). `accused` is the false positive rate, `accused_at_most` the upper end of its interval.
    """

    allowed: float
    found: float
    low: float
    high: float
    accused: float
    accused_at_most: float

    @property
    def percent(self) -> str:
        return f"{100 * self.found:.2f} % ({100 * self.low:.2f} to {100 * self.high:.2f})"


@dataclass(frozen=True)
class Auc:
    """Area under the ROC curve: the probability that a member's score is larger than another row's.

    The 95 % interval is by DeLong et al. (1988).
    """

    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class RocCurve:
    """Points of a ROC curve: false positive rates, increasing, and the true positive rate at each."""

    accused: tuple[float, ...]
    found: tuple[float, ...]


@dataclass(frozen=True)
class Roc:
    """Sorted scores of members and of other rows. A row with a score at or above the threshold is called a member."""

    members: Numbers
    others: Numbers

    @classmethod
    def of(cls, scores: Numbers, is_member: NDArray[np.bool_]) -> Roc:
        """
        >>> Roc.of(np.array([3.0, 2.0, 1.0]), np.array([True, True, False])).auc().value
        1.0
        """
        if scores.ndim != 1 or scores.shape != is_member.shape:
            raise UsageError(
                f"scores and is_member must be one value for each row, got shapes {scores.shape} and {is_member.shape}."
            )
        if np.isnan(scores).any():
            raise UsageError(f"scores must be numbers, got {int(np.isnan(scores).sum())} that are NaN.")
        members, others = np.sort(scores[is_member]), np.sort(scores[~is_member])
        if not len(members) or not len(others):
            counts = f"{len(members)} members and {len(others)} others"
            raise UsageError(f"an attack needs rows of both kinds, members and others, got {counts}.")
        return cls(members, others)

    def at(self, allowed: float) -> Detection:
        """Detection at the lowest threshold with a false positive rate of at most `allowed`.

        >>> Roc.of(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False])).at(0.1).found
        0.5
        """
        validate.between(0, 1, low_open=True, high_open=True, allowed=allowed)
        most = int(allowed * len(self.others) + 1e-9)
        # Only scores strictly above that of the first row which must not be accused: rows with equal scores would be
        # accused together with it.
        threshold = self.others[len(self.others) - most - 1]
        found = int((self.members > threshold).sum())
        accused = int((self.others > threshold).sum())
        low, high = clopper_pearson(found, len(self.members), CONFIDENCE)
        _, at_most = clopper_pearson(accused, len(self.others), CONFIDENCE)
        rates = found / len(self.members), low, high, accused / len(self.others), at_most
        return Detection(allowed, *rates)

    def curve(self, points: int = 200) -> RocCurve:
        """At most `points` points of the curve, evenly spaced in the logarithm of the false positive rate."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        accused, found = (
            1 - np.searchsorted(side, thresholds, side="left") / len(side) for side in (self.others, self.members)
        )
        wanted = np.logspace(-log10(len(self.others)), 0, points)
        kept = np.unique(np.searchsorted(accused, wanted + 1e-12, side="right") - 1)  # the last point within each rate
        return RocCurve(tuple(accused[kept].tolist()), tuple(found[kept].tolist()))

    def auc(self) -> Auc:
        """The area, from the rank of each score among the scores of the other kind. A tie counts half."""
        above, below = _fraction_below(self.members, self.others), 1 - _fraction_below(self.others, self.members)
        value = float(above.mean())
        parts = [side.var(ddof=1) / len(side) for side in (above, below) if len(side) > 1]
        half = float(stats.norm.isf((1 - CONFIDENCE) / 2)) * sqrt(float(sum(parts)))
        return Auc(value, max(0.0, value - half), min(1.0, value + half))


def _fraction_below(scores: Numbers, others: Numbers) -> Numbers:
    """For each score, the fraction of `others` below it, counting half of those that are equal."""
    below, not_above = np.searchsorted(others, scores, side="left"), np.searchsorted(others, scores, side="right")
    fractions: Numbers = (below + not_above) / (2 * len(others))
    return fractions
