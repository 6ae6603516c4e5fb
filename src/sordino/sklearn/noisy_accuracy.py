"""`NoisyAccuracy`: a private accuracy score for cross-validation, charged to a budget."""

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
    """Scorer for `cross_val_score` and searches: the accuracy on private rows with noise, charged to `budget`.

    `noise_multiplier` is the standard deviation of the noise on the number of correct predictions. With noise the
    accuracy may lie outside [0, 1]. A row with a value that is not finite counts as incorrect and raises no error.

    Guarantee: whether a prediction is correct depends on that row and on a model that has been accounted for, if the
    estimator predicts row by row, as all estimators of this package do.

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
                f"the budget's privacy unit must be an example, because rows are counted one by one, "
                f"got {self.budget.records.unit}."
            )
        noise, delta = Gaussian(self.noise_multiplier), self.budget.delta or _SMALLEST_DELTA
        check_tail(noise, Adjacency.ZERO_OUT, steps=1, delta=delta)

    def __call__(self, estimator: Any, X: Any, y: Any) -> float:
        def count() -> BoundedSum:
            absent = _absent(X)
            correct = (np.asarray(estimator.predict(_without(X, absent))) == np.asarray(y)) & ~absent
            if correct.shape != (len(y),):
                raise UsageError(
                    f"there must be one prediction and one label per row ({len(y)}), got shape {correct.shape}."
                )
            return BoundedSum.of_rows(torch.from_numpy(correct)[:, None], 1.0, _COUNT)

        noise, adjacency = Gaussian(self.noise_multiplier), Adjacency.ZERO_OUT
        private = self.budget.release("score", noise=noise, adjacency=adjacency, key=Key.fresh(), total_of=count)
        return float(private.divide(len(y)).value)


def _absent(X: Any) -> NDArray[np.bool_]:
    """A mask of the rows with a value that is not finite."""
    rows = np.asarray(X)
    if rows.dtype.kind != "f":
        return np.zeros(len(rows), np.bool_)
    finite: NDArray[np.bool_] = np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)
    return ~finite


def _without(X: Any, absent: NDArray[np.bool_]) -> Any:
    """X with absent rows set to zero, so that prediction raises no error: whether there are any is private."""
    if not absent.any():
        return X
    if hasattr(X, "iloc"):
        X = X.copy()
        X.iloc[absent] = 0.0
        return X
    rows = np.array(X)
    rows[absent] = 0.0
    return rows
