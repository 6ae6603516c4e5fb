"""How well scores tell members from others: detection at few false alarms, and over all thresholds."""

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
    """Members found when at most a share `allowed` of the others may be accused; `accused` is the share that was.

    `low` and `high` are a 95 % interval of `found` at this threshold (Clopper and Pearson 1934), and
    `accused_at_most` the upper end of that of `accused`.
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
    """The chance that a member has a larger score than another row, with a 95 % interval (DeLong et al. 1988)."""

    value: float
    low: float
    high: float

    @property
    def words(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"


@dataclass(frozen=True)
class RocCurve:
    """Shares of others accused, rising, and of members found at each."""

    accused: tuple[float, ...]
    found: tuple[float, ...]


@dataclass(frozen=True)
class Roc:
    """Scores of members and of others, each sorted. Whoever has a score of the threshold or more is accused."""

    members: Numbers
    others: Numbers

    @classmethod
    def of(cls, scores: Numbers, is_member: NDArray[np.bool_]) -> Roc:
        """
        >>> Roc.of(np.array([3.0, 2.0, 1.0]), np.array([True, True, False])).auc().value
        1.0
        """
        if scores.ndim != 1 or scores.shape != is_member.shape:
            raise UsageError(f"one score for each row is needed, got {scores.shape} for {is_member.shape}.")
        if np.isnan(scores).any():
            raise UsageError(f"scores must be numbers, got {int(np.isnan(scores).sum())} that are NaN.")
        members, others = np.sort(scores[is_member]), np.sort(scores[~is_member])
        if not len(members) or not len(others):
            found = f"{len(members)} members and {len(others)} others"
            raise UsageError(f"an attack needs rows of both kinds, members and others, got {found}.")
        return cls(members, others)

    def at(self, allowed: float) -> Detection:
        """At the lowest threshold that accuses no more than this share of the others.

        >>> Roc.of(np.array([3.0, 2.0, 2.0, 1.0]), np.array([True, True, False, False])).at(0.1).found
        0.5
        """
        validate.between(0, 1, low_open=True, high_open=True, allowed=allowed)
        most = int(allowed * len(self.others) + 1e-9)
        # Scores above that of the first who must not be accused: whoever ties with it would be accused together.
        threshold = self.others[len(self.others) - most - 1]
        found = int((self.members > threshold).sum())
        accused = int((self.others > threshold).sum())
        low, high = clopper_pearson(found, len(self.members), CONFIDENCE)
        _, at_most = clopper_pearson(accused, len(self.others), CONFIDENCE)
        shares = found / len(self.members), low, high, accused / len(self.others), at_most
        return Detection(allowed, *shares)

    def curve(self, points: int = 200) -> RocCurve:
        """At so many thresholds at most, spread evenly over the logarithm of the share that is accused."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        accused, found = (
            1 - np.searchsorted(side, thresholds, side="left") / len(side) for side in (self.others, self.members)
        )
        wanted = np.logspace(-log10(len(self.others)), 0, points)
        kept = np.unique(np.searchsorted(accused, wanted + 1e-12, side="right") - 1)  # the last that allows so many
        return RocCurve(tuple(accused[kept].tolist()), tuple(found[kept].tolist()))

    def auc(self) -> Auc:
        """By the ranks of either kind among the other; a tie counts half."""
        above, below = _share_below(self.members, self.others), 1 - _share_below(self.others, self.members)
        value = float(above.mean())
        parts = [side.var(ddof=1) / len(side) for side in (above, below) if len(side) > 1]
        half = float(stats.norm.isf((1 - CONFIDENCE) / 2)) * sqrt(float(sum(parts)))
        return Auc(value, max(0.0, value - half), min(1.0, value + half))


def _share_below(scores: Numbers, others: Numbers) -> Numbers:
    """For each score, the share of the others below it, and half of those that are equal."""
    below, not_above = np.searchsorted(others, scores, side="left"), np.searchsorted(others, scores, side="right")
    found: Numbers = (below + not_above) / (2 * len(others))
    return found
