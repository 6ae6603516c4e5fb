"""Metrics are those of scikit-learn, and a model that is no better than a constant answer is told apart."""

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score
from torch import nn

from sordino.errors import UsageError
from sordino.training.evaluation import Public
from sordino.training.metrics import ClassMetrics, constant_is_better, measured_at_end


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_are_those_of_scikit_learn(classes):
    draw = torch.Generator().manual_seed(0)
    outputs, target = torch.randn(200, classes, generator=draw), torch.randint(classes, (200,), generator=draw)
    found = ClassMetrics.of(outputs, target)
    predicted, chances = outputs.argmax(1).numpy(), outputs.double().softmax(1).numpy()
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(target, predicted))
    average = "binary" if classes == 2 else "macro"
    assert found.f1 == pytest.approx(f1_score(target, predicted, average=average))
    score = chances[:, 1] if classes == 2 else chances
    assert found.auc == pytest.approx(roc_auc_score(target, score, multi_class="ovr"))
    assert found.constant_accuracy == pytest.approx(np.bincount(target).max() / 200)


def test_one_logit_is_as_good_as_two():
    outputs, target = torch.randn(50, 2, generator=torch.Generator().manual_seed(1)), torch.arange(50) % 2
    assert ClassMetrics.of(outputs, target) == ClassMetrics.of(outputs[:, 1] - outputs[:, 0], target)


def test_what_is_not_defined_is_left_out():
    one_class = measured_at_end(nn.Identity(), Public((torch.eye(2), torch.tensor([0, 0]))))
    assert "auc" not in one_class and one_class["constant_accuracy"] == 1.0
    assert ClassMetrics.of(torch.tensor([[torch.nan, 1.0], [1.0, 0.0]]), torch.tensor([1, 0])).balanced_accuracy == 0.5
    with pytest.raises(UsageError, match=r"one label for each row, got a target of shape \(2, 2\)"):
        ClassMetrics.of(torch.eye(2), torch.zeros(2, 2, dtype=torch.int64))


def test_a_model_no_better_than_a_constant_is_told_apart():
    assert "70.0 % are right, and 76.0 %" in constant_is_better({"accuracy": 0.7, "constant_accuracy": 0.76})
    assert constant_is_better({"test_accuracy": 0.8, "test_constant_accuracy": 0.76}, prefix="test_") is None
    assert constant_is_better({"r2": 0.2}) is None and constant_is_better({}) is None
