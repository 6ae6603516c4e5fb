"""`PrivateRegressor`: a differentially private scikit-learn regressor."""

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
    """Regressor trained with DP-SGD, for targets between the public `bounds` = (low, high).

    Targets and predictions are clipped to the bounds. The network `module(n_features, 1)` is trained with squared error
    on targets scaled to [-1, 1]. The other parameters are those of `PrivateClassifier`.

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
        """Trains on numeric rows; a row with a missing value is ignored. One release, charged before the first step."""
        low, high = public_range(bounds=self.bounds)
        features, target = self._validated(X, y, y_numeric=True)
        self._train(features, scaled(target, low, high), users, n_outputs=1, loss=_squared_error)
        self.bounds_ = low, high
        return self

    def predict(self, X: object) -> NDArray[np.float64]:
        """The predicted target of each row, clipped to the bounds."""
        outputs = self._outputs(X)[:, 0]
        low, high = self.bounds_
        return np.interp(outputs, (-1.0, 1.0), (low, high))


def _squared_error(outputs: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], target)


def public_range(**given: Any) -> tuple[float, float]:
    """Checks and returns (low, high). It is passed as a keyword argument, so that errors name the parameter.

    >>> public_range(bounds=(0, 10))
    (0.0, 10.0)
    """
    validate.interval(-1e300, 1e300, **given)
    [(low, high)] = given.values()
    return float(low), float(high)


def scaled(target: NDArray[Any], low: float, high: float) -> NDArray[np.float64]:
    """Scales [low, high] to [-1, 1] and clips values outside. Infinite values become NaN."""
    finite = np.where(np.isfinite(target), target, np.nan)
    fraction = (column_or_1d(finite, warn=True) - low) / (high - low)
    clipped: NDArray[np.float64] = np.clip(2 * fraction - 1, -1.0, 1.0)
    return clipped
