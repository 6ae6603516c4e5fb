"""Private classifier and regressor with a convex ReLU network.

What the estimators of the convex ReLU network share: frozen gates, a convex problem, two ways to be private.

    f(x) = sum over the gates i that (x, 1) opens of V_i (x, 1) / |(x, 1)|

Nothing needs to be known of the inputs: each row is brought to norm 1 by itself, with a constant for a bias.

A private classifier whose network is convex in what is trained.

A private regressor whose network is convex in what is trained.
"""

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

# mypy: allow-untyped-calls


class ConvexReLUEstimator(PrivateFit):
    """Trains a gated ReLU network on numbers. Parameters are kept as they were given, and looked at by `fit`."""

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
        """`target` has a column for each output. A row of NaN contributes nothing."""
        train, neighbours, seed = method_named(self.method), _adjacency(self.adjacency), seed_of(self.random_state)
        check_target(self.epsilon, self.delta)
        cost = FitTarget(self.epsilon, self.delta, neighbours)
        budget = OneFit(self._records(features, target, users), self.budget)
        model = network(self.gates)
        settings = settings_for(
            cost,
            budget.records.num_units,
            curvature=loss.curvature(model.feature_bound, self.clip),
            clip=self.clip,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            epochs=self.epochs,
            strength=self.strength,
        )
        decided = TrainingDecisions(model, loss, target.shape[1], cost, settings, self.strength, seed)
        module, promised = train(decided, budget)
        self._keep(module.double(), promised, budget, assumptions)

    def _outputs(self, X: object, dtype: type[np.floating[Any]] = np.float64) -> NDArray[np.float64]:
        return super()._outputs(flat(X), dtype)


def flat(X: Any) -> Any:
    """Pictures as vectors. Anything else is left for scikit-learn to look at."""
    return np.reshape(X, (len(X), -1)) if getattr(X, "ndim", 2) > 2 else X


def _adjacency(adjacency: object) -> Adjacency:
    offered = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)  # both with a public number of units, as scikit-learn has it
    if adjacency not in offered:
        raise UsageError(
            f"adjacency must be {' or '.join(repr(str(each)) for each in offered)}, got {validate.option(adjacency)}."
        )
    return Adjacency(str(adjacency))


# mypy: allow-untyped-calls


class ConvexReLUClassifier(ClassifierMixin, ConvexReLUEstimator):
    """Learns classes with a convex ReLU network and differential privacy: `privacy_` says what is promised.

    With `method` "noisy-cgd" only the fitted model may be shown, and later noise hides earlier steps; with "dp-sgd"
    every step is counted, and users can be protected. `gates` is the width; `strength` that of a ridge term. What is
    None among `batch_size`, `epochs` and `learning_rate` is decided from the number of units and epsilon.
    `adjacency` is "zero-out" or "replace-one". All else is as for `PrivateClassifier`.

    Rows are vectors, or pictures of any shape, whose numbers are best of a size around 1. The loss is the logistic one
    for two classes, and the squared one for more. Gradients are clipped, so that there are scores of the classes
    (`decision_function`), and no probabilities.

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
        """Trains on rows of numbers, of which one with a hole is absent. One release, charged before the first step."""
        features, labels = self._validated(flat(X), y)
        coded = coded_labels(labels, self.classes)
        target, loss = _to_learn(coded)
        self._train(features, target, users, loss=loss, assumptions=coded.assumptions)
        self.classes_ = coded.classes
        return self

    def decision_function(self, X: object) -> NDArray[np.float64]:
        """A score of each of `classes_`; of two classes one number, above 0 for the second."""
        outputs = self._outputs(X)
        return outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict(self, X: object) -> NDArray[Any]:
        """The class of each row with the largest score."""
        scores = self.decision_function(X)
        likeliest = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[likeliest]
        return labels


def _to_learn(coded: CodedLabels) -> tuple[NDArray[np.float64], CertifiedLoss]:
    """What the outputs are told of each label, and by which loss. A label outside the classes is told as NaN.

    Clipped cross-entropy has a proof for two classes. More classes have their unit vectors to reach, less the mean of
    these: what all classes have in common needs no learning.
    """
    number = len(coded.classes)
    loss: CertifiedLoss
    if number == 2:
        vectors, loss = np.array([[0.0], [1.0]]), Logistic()
    else:
        vectors, loss = np.eye(number) - 1 / number, Squared()
    return np.where(coded.target[:, None] >= 0, vectors[coded.target], np.nan), loss


# mypy: allow-untyped-calls


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
