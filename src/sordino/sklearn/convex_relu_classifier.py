"""A private classifier whose network is convex in what is trained."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin

from sordino.convex.losses import CertifiedLoss, Logistic, Squared
from sordino.kernel.budget import Budget
from sordino.sklearn.classifier import CodedLabels, coded_labels
from sordino.sklearn.convex_relu import ConvexReLUEstimator, flat


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
