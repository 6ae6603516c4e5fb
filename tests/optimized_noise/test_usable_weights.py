"""Weights are refused in one line, or made usable and counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sordino.errors import UsageError
from sordino.optimized_noise import best_blocks, isotropic, of_blocks, usable_weights, weighted_laplace
from sordino.optimized_noise.costs import SMALLEST_SHARE

WRONG = {
    "all zero": ([0.0, 0.0], "must not all be 0"),
    "negative": ([1.0, -2.0, -3.0], "at least 0, got 2 below"),
    "not a number": ([1.0, float("nan")], "finite, got 1 that"),
    "infinite": ([float("inf"), 1.0, -float("inf")], "finite, got 2 that"),
    "no dimension": ([], "a vector of at least one number, got shape (0,)"),
    "a matrix": (torch.ones(2, 2), "got shape (2, 2)"),
    "a number": (torch.tensor(1.0), "got shape ()"),
}


@pytest.mark.parametrize("fit", [weighted_laplace, isotropic, best_blocks])
@pytest.mark.parametrize(("weights", "message"), WRONG.values(), ids=WRONG)
def test_what_is_not_a_weight_is_refused_in_one_line(fit, weights, message):
    with pytest.raises(UsageError) as refused:
        fit(torch.as_tensor(weights), 1.0)
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("lipschitz", [0.0, -1.0, float("nan"), float("inf"), "1"])
@pytest.mark.parametrize("fit", [weighted_laplace, isotropic, best_blocks])
def test_a_lipschitz_constant_is_a_finite_number_above_zero(fit, lipschitz):
    with pytest.raises(UsageError, match="lipschitz must be a finite number above 0"):
        fit(torch.ones(3), lipschitz)


def test_a_message_tells_no_weight():
    with pytest.raises(UsageError) as refused:
        usable_weights([-271828.0, 314159.0])
    assert "271828" not in str(refused.value) and "314159" not in str(refused.value)


def test_small_weights_are_raised_and_counted():
    usable = usable_weights([0.0, 1e-9, 2.0, 1e-3])
    assert usable.floored == 2
    assert usable.values.tolist() == [2 * SMALLEST_SHARE, 2 * SMALLEST_SHARE, 2.0, 1e-3]


def test_weights_that_are_usable_are_left_alone():
    again = usable_weights(usable_weights([0.0, 2.0]).values)
    assert again.floored == 0


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e300, 1.7e308])
def test_the_scale_of_weights_changes_no_noise(scale):
    weights = np.array([1.0, 0.25, 1.0]) if scale < 1e-323 else np.array([1.0, 0.25, 0.5])
    noise = best_blocks(torch.from_numpy(scale * weights), 1.0)
    assert noise.rates.isfinite().all() and noise.lipschitz == pytest.approx(1.0)


def test_blocks_are_one_per_weight():
    with pytest.raises(UsageError, match="block_of must name 3 blocks, one per weight, got 2"):
        of_blocks(torch.ones(3), torch.zeros(2, dtype=torch.int64), 1.0)
