"""Per-example gradients against a loop over single examples with plain autograd."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from row_gradients import gathered, loop, matrix, rows_of
from small_networks import MODELS, ROWS, labels, mlp, vectors
from small_networks import reseeded as reseeded
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import Contribution, LossGradient
from sordino.kernel.records import as_records, by_user
from sordino.kernel.states import Dense, Layout, PerExample


def test_a_contribution_has_the_protocol() -> None:
    assert isinstance(LossGradient(F.cross_entropy), Contribution)
    each = LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(ROWS))
    assert isinstance(each, PerExample)


def test_no_repr_shows_a_gradient() -> None:
    each = LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(ROWS))
    dense = Dense(rows_of(each), each.layout)
    for holder in (each, *each.blocks, dense, ClipByNorm(1.0)(dense)):
        assert "tensor" not in repr(holder)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_a_loop_over_single_examples(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, inputs, target = make_model(), make_inputs(), labels()
    records = as_records((*inputs, target))
    contribution = LossGradient(F.cross_entropy)
    contribution.check(model, records)
    each = contribution.of(model, records.gather(torch.arange(ROWS)), torch.arange(ROWS))
    torch.testing.assert_close(rows_of(each), loop(model, F.cross_entropy, inputs, target), rtol=1e-4, atol=1e-6)
    assert each.layout == Layout.of(model)


@pytest.mark.parametrize(
    "loss",
    [
        functools.partial(F.cross_entropy, weight=torch.tensor([0.1, 1.0, 10.0]), label_smoothing=0.2),
        nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.0, 10.0]), label_smoothing=0.2),
        functools.partial(
            F.cross_entropy, weight=torch.tensor([0.1, 1.0, 10.0]), label_smoothing=0.2, reduction="mean"
        ),
    ],
)
def test_class_weights_are_not_normalised_away(loss: Callable[[Any, Tensor], Tensor]) -> None:
    model, (x,), y = mlp(), vectors(), labels()
    weight = torch.tensor([0.1, 1.0, 10.0])
    summed = functools.partial(F.cross_entropy, weight=weight, label_smoothing=0.2, reduction="sum")
    torch.testing.assert_close(matrix(model, loss, gathered(x, y)), loop(model, summed, (x,), y), rtol=1e-4, atol=1e-6)


def test_a_loss_module_keeps_its_own_reduction() -> None:
    loss = nn.CrossEntropyLoss()
    matrix(mlp(), loss, gathered(*vectors(), labels()))
    assert loss.reduction == "mean"


def test_a_loss_of_several_numbers_per_example_is_summed() -> None:
    model, (x,), y = mlp(), vectors(), torch.randn(ROWS, 3)
    expected = loop(model, functools.partial(F.mse_loss, reduction="sum"), (x,), y)
    torch.testing.assert_close(matrix(model, F.mse_loss, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_class_probabilities_are_targets_too() -> None:
    model, (x,), y = mlp(), vectors(), torch.randn(ROWS, 3).softmax(1)
    LossGradient(F.cross_entropy).check(model, as_records((x, y)))
    expected = loop(model, F.cross_entropy, (x,), y)
    torch.testing.assert_close(matrix(model, F.cross_entropy, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_labels_for_each_position_are_summed_over_the_example() -> None:
    model = nn.Conv1d(2, 3, 1)
    x, y = torch.randn(ROWS, 2, 4), torch.randint(3, (ROWS, 4))
    y[0, 1] = -100
    summed = functools.partial(F.cross_entropy, reduction="sum")
    expected = loop(model, summed, (x,), y)
    torch.testing.assert_close(matrix(model, F.cross_entropy, gathered(x, y)), expected, rtol=1e-4, atol=1e-6)


def test_rows_of_a_user_are_summed_before_anything_else() -> None:
    model, x, y = mlp(), torch.randn(7, 4), torch.randint(3, (7,))
    users = by_user((x, y), torch.tensor([5, 2, 5, 9, 5, 2, 5]), rows_per_user=3)
    batch = users.gather(torch.tensor([1, 0]))  # user 5 owns rows 0, 2, 4 (and 6, above the bound); user 2 rows 1, 5
    each = loop(model, F.cross_entropy, (x,), y)
    expected = torch.stack([each[[0, 2, 4]].sum(0), each[[1, 5]].sum(0)])
    torch.testing.assert_close(matrix(model, F.cross_entropy, batch), expected, rtol=1e-4, atol=1e-6)


def test_an_empty_batch_has_no_rows() -> None:
    records = as_records((*vectors(), labels()))
    each = LossGradient(F.cross_entropy).of(mlp(), records.gather(torch.arange(0)), torch.arange(0))
    assert rows_of(each).shape == (0, 51)
    assert isinstance(each, PerExample)
    assert each.squared_norms().shape == (0, 4)


def test_seeds_must_be_one_per_row() -> None:
    with pytest.raises(UsageError, match=r"one per row \(5\), got shape \(4,\)"):
        LossGradient(F.cross_entropy).of(mlp(), gathered(*vectors(), labels()), torch.arange(4))


# --- laws ---


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_composition_of_a_micro_batch_changes_nothing(data: st.DataObject) -> None:
    widths = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=4), label="widths")
    activation = data.draw(st.sampled_from([nn.Tanh, nn.ReLU, nn.GELU]), label="activation")
    rows = data.draw(st.integers(2, 9), label="rows")
    cut = data.draw(st.integers(0, rows), label="cut")
    order = torch.tensor(data.draw(st.permutations(range(rows)), label="order"))
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), activation())]
    model = nn.Sequential(*layers, nn.Dropout(0.3), nn.Linear(widths[-1], 3))
    records = as_records((torch.randn(rows, widths[0]), torch.randint(4, (rows,))))  # label 3 is outside
    seeds = torch.randint(-(2**62), 2**62, (rows,))

    def each(indices: Tensor) -> Tensor:
        return matrix(model, F.cross_entropy, records.gather(indices), seeds[indices])

    whole = each(torch.arange(rows))
    parts = torch.cat([each(order[:cut]), each(order[cut:])])
    torch.testing.assert_close(parts, whole[order], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_removing_any_example_moves_the_sum_by_its_own_gradient_only(name: str) -> None:
    make_model, make_inputs = MODELS[name]
    model, records = make_model(), as_records((*make_inputs(), labels()))
    seeds = torch.arange(ROWS)
    whole = matrix(model, F.cross_entropy, records.gather(torch.arange(ROWS)), seeds)
    for b in range(ROWS):
        rest = torch.tensor([i for i in range(ROWS) if i != b])
        without = matrix(model, F.cross_entropy, records.gather(rest), seeds[rest])
        torch.testing.assert_close(whole.sum(0) - without.sum(0), whole[b], rtol=1e-3, atol=1e-5)
