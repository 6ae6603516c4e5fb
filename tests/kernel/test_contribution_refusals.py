"""Losses, labels and models that have no gradient per example are refused, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from small_networks import ROWS, labels, mlp
from small_networks import reseeded as reseeded
from torch import Tensor, nn

from sordino.errors import DataError, UsageError
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import Records, as_records


def records_of(target: Tensor) -> Records:
    return as_records((torch.randn(len(target), 4), target))


def test_floating_class_labels_are_refused() -> None:
    with pytest.raises(DataError, match=r"class labels must be integers, got torch\.float32"):
        LossGradient(F.cross_entropy).check(mlp(), records_of(torch.zeros(ROWS)))


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match="no trainable parameter"):
        LossGradient(F.cross_entropy).check(mlp().requires_grad_(False), records_of(labels()))
    with pytest.raises(UsageError, match="no trainable parameter"):
        LossGradient(F.cross_entropy).check(nn.Flatten(), records_of(labels()))


@pytest.mark.parametrize(
    ("dtype", "message"),
    [(torch.float16, "half precision"), (torch.bfloat16, "half precision"), (torch.complex64, "all be float32")],
)
def test_other_parameters_than_single_or_double_precision_are_refused(dtype: torch.dtype, message: str) -> None:
    model = mlp()
    model[0].weight = nn.Parameter(torch.zeros(6, 4, dtype=dtype))
    with pytest.raises(UsageError, match=message):
        LossGradient(F.cross_entropy).check(model, records_of(labels()))


def test_a_model_where_nobody_can_tell_how_it_multiplies_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must be on cpu or cuda, got meta"):
        LossGradient(F.cross_entropy).check(mlp().to("meta"), records_of(labels()))


def test_a_model_on_two_devices_is_refused() -> None:
    model = mlp()
    model[0].to("meta")
    with pytest.raises(UsageError, match="on one device, got cpu and meta"):
        LossGradient(F.cross_entropy).check(model, records_of(labels()))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, target: (outputs.sum(1) - target).square(), r"single number, got shape \(5,\)"),
        (lambda outputs, target: outputs.detach().sum(), "no gradient"),
        (lambda outputs, target: outputs.sum().item(), "single number, got float"),
        (lambda outputs: outputs.sum(), "the loss fails on synthetic outputs"),
        (lambda outputs, target: F.cross_entropy(outputs, target, weight=torch.tensor([1.0, 2.0, 3.0])), "loss mixes"),
        (lambda outputs, target: (outputs @ outputs.T).logsumexp(1).sum(), "loss mixes the examples"),
    ],
)
def test_a_loss_that_is_not_one_number_per_example_is_refused(loss: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LossGradient(loss).check(mlp(), records_of(labels()))


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    with pytest.raises(UsageError, match="make them part of the model"):
        LossGradient(nn.Bilinear(3, 3, 1))
    with pytest.raises(UsageError, match="must be a function of"):
        LossGradient("cross_entropy")  # type: ignore[arg-type]
