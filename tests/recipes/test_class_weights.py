"""Class weights are public numbers: they change the loss, and are never computed from private rows."""

import pytest
import torch
import torch.nn.functional as F

from sordino.errors import UsageError
from sordino.recipes import Recipe
from sordino.recipes.prepared import rehearse
from sordino.recipes.stages import gradient_of

LEAST = {"data": "digits", "model": "linear", "epsilon": 3.0, "delta": 1e-4}


def test_weights_scale_the_loss_of_their_class():
    weights = ",".join(str(place + 1) for place in range(10))
    prepared = rehearse(Recipe(**LEAST, class_weights=weights))
    plain = rehearse(Recipe(**LEAST))
    batch = prepared.records.gather(torch.arange(4))
    model = prepared.built.module
    found, usual = (
        gradient_of(each).of(model, batch, torch.arange(4)).squared_norms().sum(dim=1).sqrt()
        for each in (prepared, plain)
    )
    torch.testing.assert_close(found, usual * (batch.target + 1))
    torch.testing.assert_close(
        gradient_of(prepared).loss(torch.eye(10)[:1], torch.tensor([3])),
        F.cross_entropy(torch.eye(10)[:1], torch.tensor([3])),  # a weighted mean over one row divides by its weight
    )


@pytest.mark.parametrize("wrong", ["balanced", "", "1,x", "1,-1", "1,inf", "1,nan", "0,1"])
def test_weights_that_are_no_public_numbers_are_refused(wrong):
    with pytest.raises(UsageError, match=r"class_weights must be (positive numbers, one per class|a non-empty)"):
        Recipe(**LEAST, class_weights=wrong)
    with pytest.raises(UsageError, match="would reveal how many there are of each"):
        Recipe(**LEAST, class_weights="balanced")


def test_there_is_one_weight_for_each_class():
    with pytest.raises(UsageError, match="class_weights must be 10 numbers, one per class, got 2"):
        gradient_of(rehearse(Recipe(**LEAST, class_weights="1,2")))
