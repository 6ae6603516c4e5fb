"""Theorem 5.1: the errors of least squares agree with the formula, and are never below the bound."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.attacks.reconstruction import SingleLayer
from sordino.attacks.reconstruction.theorem import mean_reciprocal
from sordino.errors import UsageError

K = (0.3, -1.2, 0.7, 2.0, -0.1, 0.9, 1.5, -0.6, 0.2, 1.1)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.5, 0.8])
@pytest.mark.parametrize("noise_std", [1e-3, 0.5])
def test_measured_errors_hold_the_expected_one_in_their_interval(rate, noise_std):
    layer = SingleLayer(K, noise_std, rate)
    found = layer.attacked(3000, seed=1)
    assert found.low <= layer.expected_squared_error <= found.high
    assert found.high >= layer.lower_bound


def test_the_expected_error_is_the_mean_over_all_masks():
    squares = np.square(K)
    for kept in range(1, len(K) + 1):
        every = np.mean([1 / sum(subset) for subset in combinations(squares, kept)])
        assert mean_reciprocal(squares, kept) == pytest.approx(every, rel=1e-12)


@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=12),
    st.floats(0, 0.99),
    st.floats(1e-3, 10),
)
def test_the_expected_error_never_lies_below_the_bound_and_rises_with_the_rate(constraint, rate, noise_std):
    layer = SingleLayer(tuple(constraint), noise_std, rate)
    assert layer.expected_squared_error >= layer.lower_bound * (1 - 1e-9)
    assert layer.expected_squared_error >= SingleLayer(tuple(constraint), noise_std, 0.0).lower_bound * (1 - 1e-9)
    assert layer.expected_squared_error >= SingleLayer(
        tuple(constraint), noise_std, rate / 2
    ).expected_squared_error * (1 - 1e-9)


def test_equal_entries_meet_the_bound():
    layer = SingleLayer((2.0,) * 50, 0.1, 0.8)
    assert layer.expected_squared_error == pytest.approx(layer.lower_bound, rel=1e-12)
    assert layer.lower_bound == pytest.approx(0.01 / (0.2 * 200), rel=1e-12)


def test_a_mask_that_leaves_only_zeros_makes_the_error_infinite():
    layer = SingleLayer((1.0, 0.0, 0.0, 0.0), 0.1, 0.5)
    assert math.isnan(layer.estimate(np.zeros(4), np.array([False, True, True, False])))
    assert layer.expected_squared_error == math.inf
    assert layer.attacked(200, seed=0).value == math.inf
    assert layer.lower_bound < math.inf


@pytest.mark.parametrize(("constraint", "noise_std", "rate"), [((), 0.1, 0.5), ((1.0,), 0.1, 1.0), ((1.0,), -1.0, 0.5)])
def test_what_is_no_layer_is_refused(constraint, noise_std, rate):
    with pytest.raises(UsageError, match="must be"):
        SingleLayer(constraint, noise_std, rate)
