"""Further metrics of classifiers on public rows, by scikit-learn, and a comparison with constant answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.gradients.transformers_settings import transformers_model
from sordino.training.evaluation import Public, Regression, correctness, outputs_on


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of a classifier on rows with one label each; NaN where one is not defined.

    `balanced_accuracy` is the mean accuracy of the classes that occur. `f1` is that of the second class if there are
    two, and the mean over classes otherwise. `auc` is the area under the ROC curve, for more than two classes the mean
    of one against the rest. `constant_accuracy` is the best accuracy of an answer that is always the same.

    >>> found = ClassMetrics.of(torch.tensor([[2.0, 1.0], [0.0, 1.0], [5.0, 3.0]]), torch.tensor([0, 1, 1]))
    >>> found.balanced_accuracy, round(found.f1, 3), found.auc, round(found.constant_accuracy, 3)
    (0.75, 0.667, 0.5, 0.667)
    """

    balanced_accuracy: float
    f1: float
    auc: float
    constant_accuracy: float

    @classmethod
    def of(cls, outputs: Tensor, target: Tensor) -> ClassMetrics:
        from sklearn.metrics import f1_score, recall_score  # slow to import

        labels = target.cpu().numpy()
        if target.ndim != 1 or not len(labels):
            raise UsageError(f"metrics need one label for each row, got a target of shape {tuple(target.shape)}.")
        scores = _scores(outputs, len(labels))
        counts, classes = np.bincount(labels), scores.shape[1]
        predicted = np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), -1)
        mean_of: dict[str, Any] = {"labels": np.flatnonzero(counts), "average": "macro", "zero_division": 0}
        single = {"labels": [1], "average": "macro", "zero_division": 0} if classes == 2 else mean_of
        return cls(
            float(recall_score(labels, predicted, **mean_of)),
            float(f1_score(labels, predicted, **single)),
            _auc(scores, labels),
            float(counts.max() / len(labels)),
        )

    @property
    def in_words(self) -> str:
        """A sentence with the metrics that are defined."""
        named = {"AUC": self.auc, "balanced accuracy": self.balanced_accuracy, "F1": self.f1}
        shown = ", ".join(f"{name} {value:.3f}" for name, value in named.items() if math.isfinite(value))
        return f"{shown}. The best constant answer has an accuracy of {100 * self.constant_accuracy:.1f} %."


def _scores(outputs: Tensor, rows: int) -> NDArray[np.float64]:
    """Probabilities or logits as scores of each class, shape (rows, classes)."""
    flat = outputs.detach().double().cpu().reshape(rows, -1)
    if flat.shape[1] == 1:  # one binary logit
        flat = torch.cat([torch.zeros_like(flat), flat], dim=1)
    scores: NDArray[np.float64] = flat.softmax(dim=1).numpy()
    return scores


def _auc(scores: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    from sklearn.metrics import roc_auc_score

    occurring = [label for label in np.unique(labels) if label < scores.shape[1]]
    if len(occurring) < 2 or not np.isfinite(scores).all():
        return math.nan
    chosen = [1] if scores.shape[1] == 2 else occurring
    return float(np.mean([roc_auc_score(labels == label, scores[:, label]) for label in chosen]))


def measured_at_end(model: nn.Module, public: Public) -> dict[str, float]:
    """Accuracy and further metrics of a classifier, or errors of a regression model.

    >>> measured_at_end(nn.Identity(), Public((torch.eye(2), torch.tensor([0, 1]))))["auc"]
    1.0
    """
    if transformers_model(model) is not None:
        from sordino import huggingface

        return huggingface.measured_at_end(model, public)
    return metrics_of(*outputs_on(model, public))


def metrics_of(outputs: Tensor, target: Tensor) -> dict[str, float]:
    """The metrics that are defined: of classes, or errors of a regression if the target is floating-point."""
    if target.is_floating_point():
        found = asdict(Regression.of(outputs, target))
    else:
        found = {"accuracy": float(correctness(outputs, target).mean())}
        if target.ndim == 1:
            found |= asdict(ClassMetrics.of(outputs, target))
    return {name: value for name, value in found.items() if math.isfinite(value)}


def constant_is_better(measured: Mapping[str, object], *, prefix: str = "") -> str | None:
    """A warning if a constant answer does at least as well on public rows, or None.

    >>> constant_is_better({"test_r2": -0.5}, prefix="test_")
    'On public rows a constant answer is better: R² is -0.500, and 0 for the mean. Try more rows or a larger epsilon.'
    >>> constant_is_better({"accuracy": 0.8, "constant_accuracy": 0.6}) is None
    True
    """
    r2, accuracy, constant = (measured.get(prefix + name) for name in ("r2", "accuracy", "constant_accuracy"))
    advice = "Try more rows or a larger epsilon."
    if isinstance(r2, float) and r2 <= 0:
        return f"On public rows a constant answer is better: R² is {r2:.3f}, and 0 for the mean. {advice}"
    if isinstance(accuracy, float) and isinstance(constant, float) and accuracy <= constant:
        shown = f"{100 * accuracy:.1f} % are right, and {100 * constant:.1f} % if the answer is always the same class"
        return f"On public rows a constant answer is as good or better: {shown}. {advice}"
    return None
