"""A row that cannot be used contributes exact zeros and changes no other row. A model that cannot be used raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from row_gradients import gathered, loop, matrix
from small_networks import ROWS, Tied, labels, mlp, vectors
from small_networks import reseeded as reseeded
from torch import Tensor, nn

from sordino.errors import UsageError
from sordino.gradients.row_loss import RowLoss


@pytest.mark.parametrize("label", [3, -1, 10**9, -(10**12)])
def test_a_label_outside_the_public_classes_contributes_exact_zeros(label: int) -> None:
    model, (x,), y = mlp(), vectors(), labels()
    y[2] = label
    got = matrix(model, F.cross_entropy, gathered(x, y))
    assert torch.equal(got[2], torch.zeros_like(got[2]))
    expected = loop(model, F.cross_entropy, (x[[0, 1, 3, 4]],), y[[0, 1, 3, 4]])
    torch.testing.assert_close(got[[0, 1, 3, 4]], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [F.cross_entropy, functools.partial(F.cross_entropy, ignore_index=7)])
def test_the_ignored_label_contributes_exact_zeros(loss: Callable[[Any, Tensor], Tensor]) -> None:
    y = torch.tensor([0, -100, 7, 1, 2])
    got = matrix(mlp(), loss, gathered(*vectors(), y))
    assert [bool(row.any()) for row in got] == [True, False, False, True, True]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_row_that_is_not_finite_contributes_exact_zeros_and_leaves_the_others_alone(value: float) -> None:
    model, y = mlp(), labels()
    x = torch.randn(ROWS, 4, dtype=torch.float64)
    clean = matrix(model, F.cross_entropy, gathered(x, y))
    x[1, 2] = value
    got = matrix(model, F.cross_entropy, gathered(x, y))
    assert not got[1].any()
    assert torch.equal(got[[0, 2, 3, 4]], clean[[0, 2, 3, 4]])


def test_a_row_on_which_only_the_model_fails_contributes_exact_zeros() -> None:
    model, tokens, y = Tied(), torch.randint(7, (ROWS, 3)), torch.randint(7, (ROWS,))
    tokens[3, 0] = 99
    got = matrix(model, F.cross_entropy, gathered(tokens, y))
    others = [0, 1, 2, 4]
    assert not got[3].any()
    torch.testing.assert_close(
        got[others], loop(model, F.cross_entropy, (tokens[others],), y[others]), rtol=1e-4, atol=1e-6
    )


def test_a_label_that_a_loss_of_ones_own_fails_on_contributes_exact_zeros() -> None:
    y = torch.tensor([0, 1, 99, 2, 0])
    got = matrix(mlp(), lambda outputs, target: F.cross_entropy(outputs, target), gathered(*vectors(), y))
    assert [bool(row.any()) for row in got] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("label", "usable"), [(-1, False), (0, True), (2, True), (3, False), (-100, True), (10**9, False)]
)
def test_a_label_is_compared_with_the_classes_before_it_is_looked_up(label: int, usable: bool) -> None:
    value, known = RowLoss.of(F.cross_entropy)(torch.zeros(1, 3), torch.tensor([label]))
    assert bool(known) == usable
    assert bool(value.isfinite())


def test_a_model_that_fails_on_anything_raises_instead_of_contributing_zeros() -> None:
    with pytest.raises(UsageError, match=r"layer '0' \(Linear\)"):
        matrix(nn.Sequential(nn.Linear(9, 3)), F.cross_entropy, gathered(*vectors(), labels()))
