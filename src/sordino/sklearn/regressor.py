"""A private regressor with the manners of scikit-learn."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from sordino._input import validate
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import Clip
from sordino.sklearn.estimator import MakeModule, PrivateEstimator
from sordino.training.fit import MakeOptimizer


class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """Learns a number with differential privacy. It lies between the public `bounds` = (low, high).

    Targets beyond the bounds are taken for the nearest one, and so are predictions. The network `module(n_features, 1)`
    sees the bounds as -1 and 1, and is trained by squared error. All else is as for `PrivateClassifier`.

    >>> X = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
    >>> regressor = PrivateRegressor(bounds=(0, 100), epsilon=2.0, random_state=0).fit(X, 50 + 40 * X[:, 0])
    >>> low, high = regressor.predict([[-1.0, 0.0], [1.0, 0.0]])
    >>> bool(low < 40 and high > 60)
    True
    """

    def __init__(
        self,
        module: MakeModule | None = None,
        *,
        bounds: tuple[float, float],
        epsilon: float = 1.0,
        delta: float = 1e-5,
        batch_size: int = 256,
        epochs: float = 10,
        learning_rate: float = 0.05,
        clip: Clip | float = 1.0,
        optimizer: MakeOptimizer | None = None,
        rows_per_user: int | None = None,
        budget: Budget | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.batch_size = batch_size
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.clip = clip
        self.optimizer = optimizer
        self.rows_per_user = rows_per_user
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: object, y: object, users: object = None) -> Self:
        """Trains on rows of numbers, of which one with a hole is absent. One release, charged before the first step."""
        low, high = public_range(bounds=self.bounds)
        features, numbers = self._validated(X, y, y_numeric=True)
        self._train(features, scaled(numbers, low, high), users, n_outputs=1, loss=_squared_error)
        self.bounds_ = low, high
        return self

    def predict(self, X: object) -> NDArray[np.float64]:
        """The number that is expected of each row, within the bounds."""
        outputs = self._outputs(X)[:, 0]
        low, high = self.bounds_
        return np.interp(outputs, (-1.0, 1.0), (low, high))


def _squared_error(outputs: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], target)


def public_range(**given: Any) -> tuple[float, float]:
    """(low, high) of an argument that travels as a keyword, so that a refusal names it.

    >>> public_range(bounds=(0, 10))
    (0.0, 10.0)
    """
    validate.interval(-1e300, 1e300, **given)
    [(low, high)] = given.values()
    return float(low), float(high)


def scaled(numbers: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Numbers on [-1, 1], which stands for the range. What lies beyond counts as the nearest end; infinity is none."""
    known = np.where(np.isfinite(numbers), numbers, np.nan)
    share = (column_or_1d(known, warn=True) - low) / (high - low)
    clipped: NDArray[np.float64] = np.clip(2 * share - 1, -1.0, 1.0)
    return clipped
