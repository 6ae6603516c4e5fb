"""A private regressor whose network is convex in what is trained."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from sordino.convex.losses import Squared
from sordino.kernel.budget import Budget
from sordino.sklearn.convex_relu import ConvexReLUEstimator, flat
from sordino.sklearn.regressor import public_range, scaled


class ConvexReLURegressor(RegressorMixin, ConvexReLUEstimator):
    """Learns a number between the public ends of `target_range` with a convex ReLU network and differential privacy.

    Targets beyond the range are taken for the nearest end, and so are predictions. All else is as for
    `ConvexReLUClassifier`.

    >>> X = np.random.default_rng(0).uniform(-1, 1, (1000, 2))
    >>> regressor = ConvexReLURegressor(target_range=(0, 100), epsilon=2.0, random_state=0)
    >>> low, high = regressor.fit(X, 50 + 40 * np.abs(X[:, 0])).predict([[0.0, 0.0], [1.0, 0.0]])
    >>> bool(low < 65 < high)
    True
    """

    def __init__(
        self,
        *,
        target_range: tuple[float, float],
        method: str = "noisy-cgd",
        gates: int = 32,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: str = "zero-out",
        batch_size: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        clip: float = 0.2,
        strength: float = 0.0,
        rows_per_user: int | None = None,
        budget: Budget | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.target_range = target_range
        self.method = method
        self.gates = gates
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.batch_size = batch_size
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.clip = clip
        self.strength = strength
        self.rows_per_user = rows_per_user
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: object, y: object, users: object = None) -> Self:
        """Trains on rows of numbers, of which one with a hole is absent. One release, charged before the first step."""
        low, high = public_range(target_range=self.target_range)
        features, numbers = self._validated(flat(X), y, y_numeric=True)
        self._train(features, scaled(numbers, low, high)[:, None], users, loss=Squared())
        self.target_range_ = low, high
        return self

    def predict(self, X: object) -> NDArray[np.float64]:
        """The number that is expected of each row, within the range."""
        return np.interp(self._outputs(X)[:, 0], (-1.0, 1.0), self.target_range_)
