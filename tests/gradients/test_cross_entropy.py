"""Cross-entropy of all rows at once equals that of the rows one by one, for all settings."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.gradients import fused_kernels
from sordino.gradients.fused_kernels import CrossEntropyOfRows
from sordino.kernel.records import as_records

ROWS, CLASSES, PLACES = 6, 4, 5
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.0])


def random(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(*shape):
    return torch.randint(0, CLASSES, shape, generator=torch.Generator().manual_seed(4))


LOSSES = {
    "plain": (random(ROWS, CLASSES), labels(ROWS), {}),
    "class weights": (random(ROWS, CLASSES), labels(ROWS), {"weight": WEIGHT}),
    "smoothed": (random(ROWS, CLASSES), labels(ROWS), {"weight": WEIGHT, "label_smoothing": 0.1}),
    "places": (random(ROWS, CLASSES, PLACES), labels(ROWS, PLACES), {}),
    "ignored places": (random(ROWS, CLASSES, PLACES), labels(ROWS, PLACES), {"ignore_index": 1}),
    "pictures": (random(ROWS, CLASSES, PLACES, 2), labels(ROWS, PLACES, 2), {"weight": WEIGHT, "ignore_index": 0}),
    "probabilities": (random(ROWS, CLASSES), random(ROWS, CLASSES, seed=5).softmax(dim=1), {"label_smoothing": 0.2}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_and_gradient_of_each_row_are_those_of_the_row_alone(name):
    outputs, target, settings = LOSSES[name]

    def of_one(row, label):
        with CrossEntropyOfRows():
            return F.cross_entropy(row[None], label[None], reduction="sum", **settings)

    x = outputs.clone().requires_grad_()
    losses = torch.vmap(of_one)(x, target)
    (found,) = torch.autograd.grad(losses.sum(), x)
    for r in range(ROWS):
        row = outputs[r : r + 1].clone().requires_grad_()
        loss = F.cross_entropy(row, target[r : r + 1], reduction="sum", **settings)
        loss.backward()
        torch.testing.assert_close(losses[r], loss)
        torch.testing.assert_close(found[r], row.grad[0])


def test_a_model_is_trained_by_it(monkeypatch):
    asked = []
    monkeypatch.setattr(
        fused_kernels, "apply", lambda function, *operands: asked.append(function) or function.apply(*operands)
    )
    batch = as_records((random(ROWS, 3), labels(ROWS))).gather(torch.arange(ROWS))
    for loss in (F.cross_entropy, nn.CrossEntropyLoss(), lambda outputs, target: F.cross_entropy(outputs, target)):
        so.LossGradient(loss).of(nn.Linear(3, CLASSES), batch, torch.arange(ROWS))
    # Once in the comparison with autograd and once in use. The third asks for a mean, which its author chose.
    assert len(asked) == 4


@pytest.mark.parametrize("settings", [{"reduction": "mean"}, {"reduction": "none"}])
def test_what_is_no_sum_is_left_to_torch(settings):
    outputs, target, _ = LOSSES["places"]

    def of_one(row, label):
        with CrossEntropyOfRows():
            return F.cross_entropy(row[None], label[None], **settings).sum()

    expected = torch.stack(
        [F.cross_entropy(outputs[r : r + 1], target[r : r + 1], **settings).sum() for r in range(ROWS)]
    )
    torch.testing.assert_close(torch.vmap(of_one)(outputs, target), expected)


def test_outputs_that_no_row_has_touched_are_compared_with_each_label():
    target, same = labels(ROWS), random(1, CLASSES)

    def of_one(label):
        with CrossEntropyOfRows():
            return F.cross_entropy(same, label[None], reduction="sum")

    torch.testing.assert_close(
        torch.vmap(of_one)(target), F.cross_entropy(same.expand(ROWS, -1), target, reduction="none")
    )
