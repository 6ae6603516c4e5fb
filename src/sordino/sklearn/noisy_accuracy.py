"""A score on private rows that is paid for, in the place of one that is given away."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino._input import validate
from sordino.accounting import Adjacency, Unit
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.noise import Gaussian, check_tail
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout

_COUNT = Layout(("right",), ((1,),))
_SMALLEST_DELTA = 1e-12


@dataclass(frozen=True)
class NoisyAccuracy:
    """A scorer for `cross_val_score` and searches: the share of rows that are right, with noise, charged to `budget`.

    `noise_multiplier` is the standard deviation of the noise on the number of rows that are right. Noise may take the
    share out of [0, 1]. A row with a number that is not finite is not right, and not an error.

    Guarantee: whether a row is right depends on that row and on a model that is paid for already, if the estimator
    predicts row by row, as all of this package do.

    >>> from sklearn.dummy import DummyClassifier
    >>> X, y = np.zeros((1000, 1)), np.ones(1000, dtype=int)
    >>> budget = Budget((X, y))
    >>> score = NoisyAccuracy(budget, noise_multiplier=5.0)
    >>> bool(0.9 < score(DummyClassifier().fit(X, y), X, y) < 1.1), budget.releases
    (True, ('score',))
    """

    budget: Budget = field(repr=False)
    noise_multiplier: float

    def __post_init__(self) -> None:
        validate.instance(Budget, budget=self.budget)
        if self.budget.records.unit is not Unit.EXAMPLE:
            raise UsageError(
                f"rows are counted one by one, got a budget that protects each {self.budget.records.unit}."
            )
        noise, delta = Gaussian(self.noise_multiplier), self.budget.delta or _SMALLEST_DELTA
        check_tail(noise, Adjacency.ZERO_OUT, steps=1, delta=delta)

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        def count() -> BoundedSum:
            absent = _absent(X)
            right = (np.asarray(estimator.predict(_without(X, absent))) == np.asarray(y)) & ~absent
            if right.shape != (len(y),):
                raise UsageError(f"there must be one prediction and one label per row ({len(y)}), got {right.shape}.")
            return BoundedSum.of_rows(torch.from_numpy(right)[:, None], 1.0, _COUNT)

        noise, adjacency = Gaussian(self.noise_multiplier), Adjacency.ZERO_OUT
        private = self.budget.release("score", noise=noise, adjacency=adjacency, key=Key.fresh(), total_of=count)
        return float(private.divide(len(y)).value)


def _absent(X: Any) -> NDArray[np.bool_]:
    """Which rows hold a number that is not finite."""
    rows = np.asarray(X)
    if rows.dtype.kind != "f":
        return np.zeros(len(rows), np.bool_)
    finite: NDArray[np.bool_] = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
    return ~finite


def _without(X: Any, absent: NDArray[np.bool_]) -> Any:
    """The rows with zeros in place of those that are absent: whether there are any is private."""
    if not absent.any():
        return X
    if hasattr(X, "iloc"):
        X = X.copy()
        X.iloc[absent] = 0.0
        return X
    rows = np.array(X)
    rows[absent] = 0.0
    return rows
