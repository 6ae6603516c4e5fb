"""Whether groups are treated alike where there is something to get: two classes, of which one is the favourable.

Demographic parity asks whether groups get the last class equally often; equalized odds, whether they do among those
who should get it and among those who should not (Hardt, Price and Srebro 2016). The rates are those of `fairlearn`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.effects.groups import Group, Grouping
from sordino.effects.intervals import Interval, gap_of
from sordino.errors import DataError

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Disparity:
    """The largest distance of two groups in one rate, the groups, and an interval for just these two."""

    by: str
    rate: str
    gap: Interval
    most: str
    least: str

    @property
    def words(self) -> str:
        return f"the {self.rate} is {self.gap.points} points higher for {self.most} than for {self.least}."


def demographic_parity(grouping: Grouping, target: Labels, predicted: Labels, last: str, *, seed: int) -> Disparity:
    """The difference in how often groups get the last class, whose name is `last`.

    >>> from sordino.effects.groups import Group
    >>> groups = Grouping("sex", (Group("sex", "f", np.arange(4)), Group("sex", "m", np.arange(4, 8))))
    >>> truth, said = np.array([0, 1] * 4), np.array([0, 0, 0, 1, 1, 1, 1, 0])
    >>> found = demographic_parity(groups, truth, said, "yes", seed=0)
    >>> found.most, found.least, found.gap.value
    ('m', 'f', 0.5)
    """
    everybody = np.ones(len(target), bool)
    return _disparity(grouping, f"share given {last!r}", target, predicted, everybody, seed)


def equalized_odds(grouping: Grouping, target: Labels, predicted: Labels, last: str, *, seed: int) -> Disparity:
    """The larger of the differences in true and in false positive rates. Each group needs rows of both classes."""
    for group in grouping.groups:
        if len(np.unique(target[group.rows])) < 2:
            raise DataError(f"equalized odds need rows of both classes in each group, and {group.name!r:.80} has one.")
    rates = {f"share rightly given {last!r}": target == 1, f"share wrongly given {last!r}": target == 0}
    found = [_disparity(grouping, rate, target, predicted, among, seed) for rate, among in rates.items()]
    return max(found, key=lambda disparity: disparity.gap.value)


def _disparity(
    grouping: Grouping, rate: str, target: Labels, predicted: Labels, among: NDArray[np.bool_], seed: int
) -> Disparity:
    shares = _rates(grouping, target, predicted, among)
    most, least = (choose(grouping.groups, key=lambda group: shares[group.name]) for choose in (max, min))
    positive: NDArray[np.float64] = (predicted == 1).astype(np.float64)

    def values(group: Group) -> NDArray[np.float64]:
        return positive[group.rows[among[group.rows]]]

    return Disparity(grouping.by, rate, gap_of(values(most), values(least), seed=seed), most.name, least.name)


def _rates(grouping: Grouping, target: Labels, predicted: Labels, among: NDArray[np.bool_]) -> dict[str, float]:
    """The share of each group that is given the last class, among some rows."""
    try:
        from fairlearn.metrics import MetricFrame, selection_rate  # type: ignore[attr-defined]
    except ImportError:
        raise DataError(
            "demographic parity and equalized odds need fairlearn: pip install 'sordino[fairness]'."
        ) from None
    rows = np.concatenate([group.rows for group in grouping.groups])
    names = np.concatenate([np.full(len(group.rows), group.name, dtype=object) for group in grouping.groups])
    kept = among[rows]
    frame = MetricFrame(
        metrics=selection_rate,
        y_true=target[rows][kept],
        y_pred=predicted[rows][kept],
        sensitive_features=names[kept],
    )
    return {str(name): float(share) for name, share in frame.by_group.items()}
