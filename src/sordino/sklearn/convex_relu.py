"""Private classifier and regressor with a convex ReLU network, trained by NoisyCGD or DP-SGD.

    f(x) = sum over the gates i that (x, 1) opens of V_i (x, 1) / |(x, 1)|

The gates are random and fixed, so the loss is convex in the trained maps V_i. No knowledge of the inputs is needed:
each row, with an appended constant for a bias, is scaled to norm 1 on its own.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.convex.losses import CertifiedLoss, Logistic, Squared
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.calibration import check_target
from sordino.sklearn.classifier import CodedLabels, coded_labels
from sordino.sklearn.convex_relu_training import FitTarget, TrainingDecisions, method_named, network, settings_for
from sordino.sklearn.estimator import OneFit, PrivateFit, seed_of
from sordino.sklearn.regressor import public_range, scaled


class ConvexReLUEstimator(PrivateFit):
    """Base of the estimators with a gated ReLU network. `fit` checks the parameters, as scikit-learn requires."""

    method: str
    gates: int
    adjacency: str
    batch_size: int | None
    epochs: int | None
    learning_rate: float | None
    clip: float
    strength: float

    def _train(
        self,
        features: NDArray[Any],
        target: NDArray[np.float64],
        users: object,
        *,
        loss: CertifiedLoss,
        assumptions: tuple[str, ...] = (),
    ) -> None:
        """Trains on `target`, which has a column for each output. A row whose target is NaN contributes nothing."""
        train, adjacency, seed = method_named(self.method), _adjacency(self.adjacency), seed_of(self.random_state)
        check_target(self.epsilon, self.delta)
        fit_target = FitTarget(self.epsilon, self.delta, adjacency)
        budget = OneFit(self._records(features, target, users), self.budget)
        model = network(self.gates)
        settings = settings_for(
            fit_target,
            budget.records.num_units,
            curvature=loss.curvature(model.feature_bound, self.clip),
            clip=self.clip,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            strength=self.strength,
        )
        decisions = TrainingDecisions(model, loss, target.shape[1], fit_target, settings, self.strength, seed)
        module, guarantee = train(decisions, budget)
        self._keep(module.double(), guarantee, budget, assumptions)

    def _outputs(self, X: object, dtype: type[np.floating[Any]] = np.float64) -> NDArray[np.float64]:
        return super()._outputs(flat(X), dtype)


def flat(X: Any) -> Any:
    """Flattens images to vectors. Everything else is left for scikit-learn to check."""
    return np.reshape(X, (len(X), -1)) if getattr(X, "ndim", 2) > 2 else X


def _adjacency(adjacency: object) -> Adjacency:
    allowed = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)  # both take the number of units as public
    if adjacency not in allowed:
        raise UsageError(
            f"adjacency must be {' or '.join(repr(str(each)) for each in allowed)}, got {validate.option(adjacency)}."
        )
    return Adjacency(str(adjacency))


class ConvexReLUClassifier(ClassifierMixin, ConvexReLUEstimator):
    """Classifier with a convex ReLU network, trained with differential privacy. `privacy_` is its guarantee.

    With `method` "noisy-cgd" only the fitted model may be published, and the noise of later steps hides earlier ones;
    with "dp-sgd" the guarantee covers every step, and users can be the unit. `gates` is the width, `strength` the
    coefficient of a ridge term. `batch_size`, `epochs` and `learning_rate` that are None are chosen from the number of
    units and epsilon. `adjacency` is "zero-out" or "replace-one". The other parameters are those of
    `PrivateClassifier`.

    Rows are vectors, or images of any shape, with values of magnitude around 1. The loss is logistic for two classes
    and squared for more. Because gradients are clipped, outputs are scores (`decision_function`), not probabilities.

    >>> X = np.random.default_rng(0).uniform(-1, 1, (600, 2))
    >>> y = np.where(X[:, 0] > 0, "right", "left")
    >>> classifier = ConvexReLUClassifier(classes=["left", "right"], random_state=0).fit(X, y)
    >>> classifier.predict([[0.9, 0.0], [-0.9, 0.0]]).tolist()
    ['right', 'left']
    >>> classifier.privacy_.epsilon <= 1.0, str(classifier.privacy_.view)
    (True, 'final-model')
    """

    def __init__(
        self,
        *,
        method: str = "noisy-cgd",
        gates: int = 32,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        adjacency: str = "zero-out",
        classes: Sequence[Any] | NDArray[Any] | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        clip: float = 0.5,
        strength: float = 0.0,
        rows_per_user: int | None = None,
        budget: Budget | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.gates = gates
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.classes = classes
        self.batch_size = batch_size
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.clip = clip
        self.strength = strength
        self.rows_per_user = rows_per_user
        self.budget = budget
        self.random_state = random_state

    def fit(self, X: object, y: object, users: object = None) -> Self:
        """Trains on numeric rows; a row with a missing value is ignored. One release, charged before the first step."""
        features, labels = self._validated(flat(X), y)
        coded = coded_labels(labels, self.classes)
        target, loss = _target_and_loss(coded)
        self._train(features, target, users, loss=loss, assumptions=coded.assumptions)
        self.classes_ = coded.classes
        return self

    def decision_function(self, X: object) -> NDArray[np.float64]:
        """The score of each of `classes_`; for two classes one score per row, above 0 for the second class."""
        outputs = self._outputs(X)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: object) -> NDArray[Any]:
        """The class with the largest score, for each row."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[best]
        return labels


def _target_and_loss(coded: CodedLabels) -> tuple[NDArray[np.float64], CertifiedLoss]:
    """The target of each row and the loss. A label outside the classes has the target NaN.

    Clipped cross-entropy is certified for two classes only. With more classes the targets are centered one-hot vectors.
    """
    count = len(coded.classes)
    loss: CertifiedLoss
    if count == 2:
        vectors, loss = np.array([[0.0], [1.0]]), Logistic()
    else:
        vectors, loss = np.eye(count) - 1 / count, Squared()
    return np.where(coded.target[:, None] >= 0, vectors[coded.target], np.nan), loss


class ConvexReLURegressor(RegressorMixin, ConvexReLUEstimator):
    """Regressor with a convex ReLU network, trained with differential privacy on targets in the public `target_range`.

    Targets and predictions are clipped to the range. The other parameters are those of `ConvexReLUClassifier`.

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
        """Trains on numeric rows; a row with a missing value is ignored. One release, charged before the first step."""
        low, high = public_range(target_range=self.target_range)
        features, target = self._validated(flat(X), y, y_numeric=True)
        self._train(features, scaled(target, low, high)[:, None], users, loss=Squared())
        self.target_range_ = low, high
        return self

    def predict(self, X: object) -> NDArray[np.float64]:
        """The predicted target of each row, clipped to the range."""
        return np.interp(self._outputs(X)[:, 0], (-1.0, 1.0), self.target_range_)
