"""The rates and the blocks are the best of their family."""

from __future__ import annotations

from math import gamma, pi, sqrt

import mpmath
import numpy as np
import pytest
import torch
from families import COSTS, FAMILIES, lognormal
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import ndtri

from sordino.optimized_noise import (
    AbsoluteCost,
    SquaredCost,
    best_blocks,
    isotropic,
    of_blocks,
    usable_weights,
    weighted_laplace,
)
from sordino.optimized_noise.fits import best_partition

ROUNDING = 1 + 1e-9


def cost_of(fit, weights, cost=COSTS[0], lipschitz=1.0):
    return fit(weights, lipschitz, cost).expected_cost(usable_weights(weights).values, cost)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 999, 10_001, 10**5, 10**6, 10**8])
def test_the_moment_of_a_block_has_twelve_digits_up_to_a_hundred_million_coordinates(size):
    with mpmath.workdps(40):
        half = mpmath.mpf(size) / 2
        expected = size / mpmath.sqrt(mpmath.pi) * mpmath.exp(mpmath.loggamma(half) - mpmath.loggamma(half + 0.5))
    assert AbsoluteCost().moment(np.array([size]))[0] == pytest.approx(float(expected), rel=1e-11)


def test_weighted_laplace_has_the_cost_of_its_formula():
    weights = lognormal(20)
    assert cost_of(weighted_laplace, weights, lipschitz=2.0) == pytest.approx(
        float((weights ** (2 / 3)).sum() ** 1.5) / 2
    )
    squared = float((2 * weights).sqrt().sum() ** 2) / 4
    assert cost_of(weighted_laplace, weights, SquaredCost(), 2.0) == pytest.approx(squared)


def test_isotropic_noise_has_the_cost_of_its_formula():
    weights = lognormal(5)
    mean_coordinate = 5 * gamma(2.5) / (sqrt(pi) * gamma(3))
    assert cost_of(isotropic, weights, lipschitz=2.0) == pytest.approx(float(weights.sum()) * mean_coordinate / 2)
    assert cost_of(isotropic, weights, SquaredCost(), 2.0) == pytest.approx(float(weights.sum()) * 6 / 4)


@pytest.mark.parametrize("cost", COSTS, ids=repr)
def test_no_other_rates_are_better(cost):
    weights, blocks = lognormal(6), torch.tensor([0, 1, 1, 2, 2, 2])
    constants = np.bincount(blocks, weights) * cost.moment(np.array([1, 2, 3]))
    searched = minimize(
        lambda x: (constants / np.exp(cost.power * x)).sum() * np.exp(2 * x).sum() ** (cost.power / 2), np.zeros(3)
    )
    found = of_blocks(weights, blocks, 1.0, cost).expected_cost(weights, cost)
    assert found == pytest.approx(searched.fun, rel=1e-8)


@pytest.mark.parametrize("lipschitz", [1e-12, 0.3, 7.0, 1e9])
@pytest.mark.parametrize("fit", FAMILIES)
def test_rates_are_as_long_as_asked_for_and_never_longer(fit, lipschitz):
    for dimension in (1, 7, 1000):
        spent = fit(lognormal(dimension, zeros=dimension // 3), lipschitz).lipschitz
        assert lipschitz * (1 - 1e-11) < spent <= lipschitz


def partitions(number):
    """All partitions of so many coordinates, each as the block of every coordinate."""
    if number == 0:
        yield []
        return
    for rest in partitions(number - 1):
        for block in range(max(rest, default=-1) + 2):
            yield [*rest, block]


def formula(weights, blocks, cost):
    """The cost at the best rates, written out."""
    sizes, sums = np.bincount(blocks), np.bincount(blocks, weights)
    if isinstance(cost, SquaredCost):
        return np.sqrt(sums * (sizes + 1)).sum() ** 2
    moments = [d * gamma(d / 2) / (sqrt(pi) * gamma((d + 1) / 2)) for d in sizes]
    return ((sums * moments) ** (2 / 3)).sum() ** 1.5


@pytest.mark.parametrize("cost", COSTS, ids=repr)
@pytest.mark.parametrize("tau", [0.3, 1.0, 3.0])
def test_no_partition_is_better(tau, cost):
    for dimension in range(1, 8):
        weights = lognormal(dimension, tau, seed=dimension)
        best = min(formula(weights.numpy(), blocks, cost) for blocks in partitions(dimension))
        assert cost_of(best_blocks, weights, cost) == pytest.approx(best, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    dimension=st.one_of(st.integers(1, 10), st.integers(1, 2000), st.sampled_from([256, 257, 10**4, 10**5])),
    tau=st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0, 10.0]),
    zeros=st.sampled_from([0.0, 0.5, 0.99]),
    seed=st.integers(0, 100),
    cost=st.sampled_from(COSTS),
)
def test_blocks_are_never_worse_than_the_other_families(dimension, tau, zeros, seed, cost):
    weights = lognormal(dimension, tau, seed, zeros=int(zeros * dimension))
    others = [cost_of(fit, weights, cost) for fit in (weighted_laplace, isotropic)]
    assert cost_of(best_blocks, weights, cost) <= min(others) * ROUNDING


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_many_lognormal_weights_cost_what_the_limit_says(tau):
    """Relative to Laplace noise of one scale: exp(-tau^2 / 6), sqrt(2 / pi), and their product for fine blocks."""
    size = 10**5
    weights = torch.from_numpy(np.exp(tau * ndtri((np.arange(size) + 0.5) / size)))
    laplace, round_, blocks = (cost_of(fit, weights) / (size**0.5 * float(weights.sum())) for fit in FAMILIES)
    limit = np.exp(-(tau**2) / 6)
    assert laplace == pytest.approx(limit, rel=0.01)
    assert round_ == pytest.approx(sqrt(2 / pi), rel=1e-4)
    assert blocks == pytest.approx(sqrt(2 / pi) * limit, rel=0.01)
    fifty = of_blocks(weights, torch.arange(size) // (size // 50), 1.0).expected_cost(weights, AbsoluteCost())
    assert blocks <= fifty / (size**0.5 * float(weights.sum()))


@pytest.mark.parametrize("cost", COSTS, ids=repr)
def test_more_cells_gain_less_than_a_thousandth(cost):
    weights = lognormal(5000, tau=3.0)
    few, many = (torch.from_numpy(best_partition(weights.numpy(), cost, cells)) for cells in (256, 1024))
    costs = [of_blocks(weights, blocks, 1.0, cost).expected_cost(weights, cost) for blocks in (few, many)]
    assert costs[0] <= costs[1] * 1.001


def test_the_order_of_weights_changes_nothing():
    weights = lognormal(500)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    there, back = best_blocks(weights, 1.0), best_blocks(weights[order], 1.0)
    assert torch.equal(there.block_of[order], back.block_of)
    assert torch.allclose(there.rates, back.rates, rtol=1e-12)
