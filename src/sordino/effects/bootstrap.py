"""Bootstrap confidence intervals for statistics of rows (Efron 1979)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.training.evaluation import wilson

DRAWS = 1000
_SAMPLES_AT_A_TIME = 50  # each has as many rows as the data
_ENDS = (0.025, 0.975)

Statistic = Callable[[NDArray[np.int64]], float]


@dataclass(frozen=True)
class Interval:
    """A fraction, or a difference of fractions, with its 95 % interval.

    >>> Interval(0.041, 0.02, 0.063).points, Interval(0.9, 0.88, 0.92).percent
    ('4.1 (2.0 to 6.3)', '90.0 % (88.0 to 92.0)')
    """

    value: float
    low: float
    high: float

    @property
    def points(self) -> str:
        """The value and its interval in percentage points."""
        return f"{in_points(self.value)} ({in_points(self.low)} to {in_points(self.high)})"

    @property
    def percent(self) -> str:
        return f"{100 * self.value:.1f} % ({100 * self.low:.1f} to {100 * self.high:.1f})"


def bootstrap(statistic: Statistic, rows: int, *, seed: int, draws: int = DRAWS) -> Interval:
    """The statistic of all `rows` with its percentile bootstrap interval.

    `statistic` is called with arrays of row indices.

    >>> heads = np.arange(100) % 2
    >>> interval = bootstrap(lambda rows: heads[rows].mean(), 100, seed=0)
    >>> interval.value, interval.low < 0.43, interval.high > 0.57
    (0.5, True, True)
    """
    low, high = np.quantile(_resampled(statistic, rows, seed, draws), _ENDS)
    return Interval(float(statistic(np.arange(rows))), float(low), float(high))


def bootstrap_of_distance(statistic: Statistic, rows: int, *, seed: int, draws: int = DRAWS) -> Interval:
    """Value and interval of a statistic that is biased upwards, such as a mean of absolute values, without its bias.

    Bootstrap samples are about as far above the value on the rows as that is above the truth. So value and interval are
    reflected at the value on the rows (basic bootstrap), and clamped at zero. If the truth is 0, the interval is too
    narrow.

    >>> noise = np.random.default_rng(0).normal(size=400).reshape(20, 20)  # twenty groups, whose true means are all 0
    >>> interval = bootstrap_of_distance(lambda rows: np.abs(noise[:, rows].mean(axis=1)).mean(), 20, seed=0)
    >>> round(interval.value, 2), float(np.abs(noise.mean(axis=1)).mean().round(2))
    (0.14, 0.2)
    """
    measured, values = float(statistic(np.arange(rows))), _resampled(statistic, rows, seed, draws)
    value, low, high = 2 * measured - np.array([np.mean(values), *np.quantile(values, _ENDS[::-1])])
    return Interval(max(0.0, float(value)), max(0.0, float(low)), max(0.0, float(high)))


def _resampled(statistic: Statistic, rows: int, seed: int, draws: int) -> NDArray[np.float64]:
    """The statistic of each bootstrap sample."""
    if rows == 1:  # scipy refuses a single row; every sample is that row
        return np.full(draws, statistic(np.zeros(1, dtype=np.int64)))
    result = stats.bootstrap(
        (np.arange(rows),),
        statistic,
        vectorized=False,
        n_resamples=draws,
        batch=_SAMPLES_AT_A_TIME,
        method="percentile",
        random_state=np.random.default_rng(seed),
    )
    distribution: NDArray[np.float64] = result.bootstrap_distribution
    return distribution


def mean_of(values: NDArray[np.float64], *, seed: int) -> Interval:
    """The mean of values from 0 to 1. If all are 0 or all are 1, the interval is Wilson's: bootstrap has no width."""
    if set(np.unique(values)) in ({0.0}, {1.0}):
        return Interval(float(values[0]), *wilson(int(values.sum()), len(values)))
    return bootstrap(lambda rows: float(values[rows].mean()), len(values), seed=seed)


def change_of(differences: NDArray[np.float64], *, seed: int) -> Interval:
    """The mean of differences. If all are 0, the interval extends to either side by the width of Wilson's interval."""
    if not differences.any():
        _, most = wilson(0, len(differences))
        return Interval(0.0, -most, most)
    return bootstrap(lambda rows: float(differences[rows].mean()), len(differences), seed=seed)


def in_points(share: float) -> str:
    """A fraction in percentage points, with one digit.

    >>> in_points(0.0412), in_points(-0.0001)
    ('4.1', '0.0')
    """
    return f"{round(100 * share, 1) + 0.0:.1f}"


def gap_of(upper: NDArray[np.float64], lower: NDArray[np.float64], *, seed: int) -> Interval:
    """The difference of the means of two independent samples, with an interval by square-and-add (Newcombe 1998).

    >>> gap_of(np.ones(50), np.arange(50) % 2.0, seed=0).value
    0.5
    """
    first, second = mean_of(upper, seed=seed), mean_of(lower, seed=seed + 1)
    value = first.value - second.value
    below = np.hypot(first.value - first.low, second.high - second.value)
    above = np.hypot(first.high - first.value, second.value - second.low)
    return Interval(value, value - float(below), value + float(above))
