"""`PrivateClassifier`: a differentially private scikit-learn classifier."""

# mypy: allow-untyped-calls

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import Clip
from sordino.sklearn.estimator import MakeModule, PrivateEstimator
from sordino.training.fit import MakeOptimizer

_OUTSIDE = -1


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """Classifier trained with DP-SGD. The fitted model may be published; `privacy_` is its guarantee.

    `module(n_features, n_outputs)` makes the network, by default a linear model. `classes` lists all possible labels;
    rows with other labels contribute nothing. With `classes` None, the set of labels in `y` is declared public.
    `batch_size` is the expected batch size, at most the number of units. The privacy unit is a row, or a user if
    `users` is passed to `fit`; the first `rows_per_user` rows of each user are used. All fits that share a `budget`,
    including clones, are accounted for together. With `random_state` None the noise is not reproducible; an integer
    is for experiments and must stay secret.

    >>> X = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    >>> y = np.where(X[:, 0] > 0, "right", "left")
    >>> classifier = PrivateClassifier(epsilon=1.0, classes=["left", "right"], random_state=0).fit(X, y)
    >>> classifier.predict([[0.9, 0.0], [-0.9, 0.0]]).tolist()
    ['right', 'left']
    >>> classifier.privacy_.epsilon <= 1.0
    True
    """

    def __init__(
        self,
        module: MakeModule | None = None,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        batch_size: int = 256,
        epochs: float = 20,
        learning_rate: float = 0.2,
        clip: Clip | float = 1.0,
        optimizer: MakeOptimizer | None = None,
        rows_per_user: int | None = None,
        budget: Budget | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.module = module
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
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
        features, labels = self._validated(X, y)
        coded = coded_labels(labels, self.classes)
        outputs, assumptions = len(coded.classes), coded.assumptions
        self._train(features, coded.target, users, n_outputs=outputs, loss=F.cross_entropy, assumptions=assumptions)
        self.classes_ = coded.classes
        return self

    def predict_proba(self, X: object) -> NDArray[np.float64]:
        """The probability of each of `classes_`, shape (n_rows, n_classes)."""
        probabilities: NDArray[np.float64] = softmax(self._outputs(X), axis=1)
        return probabilities

    def predict(self, X: object) -> NDArray[Any]:
        """The most probable class of each row."""
        most_probable = self._outputs(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[most_probable]
        return labels


@dataclass(frozen=True)
class CodedLabels:
    """The sorted classes, and the index of each row's label among them, or -1 if it is not a class."""

    classes: NDArray[Any]
    target: NDArray[np.int64] = field(repr=False)
    assumptions: tuple[str, ...]


def coded_labels(labels: NDArray[Any], declared: Sequence[Any] | NDArray[Any] | None) -> CodedLabels:
    """Codes labels by the declared classes. Without declared classes, the set of labels is public. NaN is no label.

    >>> coded_labels(np.array(["b", "a", "c"]), ["a", "b"]).target.tolist()
    [1, 0, -1]
    """
    labels = column_or_1d(labels, warn=True)
    assumptions = ("the set of labels that occur is public",) if declared is None else ()
    if declared is None:
        declared = _present(labels)
        check_classification_targets(declared)
    classes = np.unique(np.asarray(declared))
    if len(classes) < 2:
        raise UsageError(f"there must be at least two classes, got {len(classes)} class: list all possible classes.")
    return CodedLabels(classes, _positions(labels, classes), assumptions)


def _present(labels: NDArray[Any]) -> NDArray[Any]:
    """The labels that are not None, NaN or infinite."""
    if labels.dtype.kind not in "fO":
        return labels
    present = [label is not None and label == label and label not in (math.inf, -math.inf) for label in labels.tolist()]
    return labels[np.array(present, dtype=np.bool_)]


def _positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """The index of each label among the classes, or `_OUTSIDE`, which makes its row contribute nothing."""
    if (labels.dtype.kind in "biuf") != (classes.dtype.kind in "biuf"):
        raise UsageError(
            f"labels and classes must be both numeric or both not numeric, got {labels.dtype} and {classes.dtype}."
        )
    position = {label: index for index, label in enumerate(classes.tolist())}
    return np.array([position.get(label, _OUTSIDE) for label in labels.tolist()], dtype=np.int64)
