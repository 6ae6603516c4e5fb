"""`BlockNorm`: its density, its density ratios, its moments and its samples.

Statistical tests fix their seed. Their false alarm rate is about one in a million: five standard errors for a mean, a
p-value of 1e-6 for a KS test.
"""

from __future__ import annotations

from math import pi

import numpy as np
import pytest
import torch
from contracts import stream
from families import COSTS, FAMILIES, copied, draws, lognormal
from scipy import stats

from sordino.errors import UsageError
from sordino.optimized_noise import BlockNorm, of_blocks

EPSILON, SENSITIVITY = 0.7, 2.5
MIXED = of_blocks(lognormal(9), torch.tensor([0, 1, 1, 2, 2, 2, 3, 3, 3]), EPSILON / SENSITIVITY)
SUSPICIOUS = 1e-6


def norm(block_of, rates):
    return BlockNorm(torch.tensor(block_of), torch.tensor(rates, dtype=torch.float64))


@pytest.mark.parametrize("cost", COSTS, ids=repr)
@pytest.mark.parametrize("fit", FAMILIES)
def test_the_mean_cost_of_draws_is_the_expected_cost(fit, cost):
    weights = lognormal(12, zeros=2)
    noise = fit(weights, EPSILON / SENSITIVITY, cost)
    costs = cost.pointwise(draws(noise, 20_000).numpy()) @ weights.numpy()
    error = costs.std() / np.sqrt(len(costs))
    assert abs(costs.mean() - noise.expected_cost(weights, cost)) < 5 * error


def test_every_coordinate_has_its_own_moments():
    z = draws(MIXED, 100_000)
    for found, expected in ((z.abs(), MIXED.expected_absolute()), (z.square(), MIXED.expected_square())):
        assert ((found.mean(0) - expected).abs() < 5 * found.std(0) / 100_000**0.5).all()
    squares = z.square().sum(1)
    assert abs(squares.mean().sqrt() / MIXED.expected_norm() - 1) < 0.02


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_radii_are_gamma_and_independent_of_directions(size):
    z = draws(norm([0] * size, [3.0]), 20_000).numpy()
    radii = np.linalg.norm(z, axis=1)
    assert stats.kstest(3 * radii, stats.gamma(size).cdf).pvalue > SUSPICIOUS
    assert abs(stats.spearmanr(radii, z[:, 0] / radii).statistic) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_directions_are_uniform(size):
    z = draws(norm([0] * size, [1.0]), 20_000).numpy()
    directions = z / np.linalg.norm(z, axis=1, keepdims=True)
    across = np.random.default_rng(0).normal(size=size)
    for axis in (*np.eye(size), across / np.linalg.norm(across)):
        # The square of a coordinate of a uniform direction is Beta(1 / 2, (d - 1) / 2); its sign is random.
        along = directions @ axis
        assert stats.kstest(along**2, stats.beta(0.5, (size - 1) / 2).cdf).pvalue > SUSPICIOUS
        assert abs((along > 0).mean() - 0.5) < 5 * 0.5 / np.sqrt(20_000)


def test_blocks_of_one_are_laplace_and_independent():
    z = draws(norm([0, 1], [1.0, 2.0]), 20_000).numpy()
    assert stats.kstest(z[:, 0], stats.laplace().cdf).pvalue > SUSPICIOUS
    assert stats.kstest(2 * z[:, 1], stats.laplace().cdf).pvalue > SUSPICIOUS
    assert abs(stats.spearmanr(z[:, 0], z[:, 1]).statistic) < 5 / np.sqrt(20_000)


def test_a_draw_is_addressed_by_step_and_stream():
    def drawn(seed, step):
        return MIXED.sample(stream("noise", seed), step=step)

    assert torch.equal(drawn(0, 0), drawn(0, 0))
    assert not torch.equal(drawn(0, 0), drawn(0, 1)) and not torch.equal(drawn(0, 0), drawn(1, 0))


def test_steps_are_independent_draws():
    z = torch.stack([norm([0], [1.0]).sample(stream(), step=step) for step in range(1000)]).flatten().numpy()
    assert stats.kstest(z, stats.laplace().cdf).pvalue > SUSPICIOUS
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / np.sqrt(1000)


def test_the_number_of_threads_changes_no_draw():
    many, before = copied(MIXED, 250_000), torch.get_num_threads()
    try:
        drawn = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            drawn.append(many.sample(stream(), step=0))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*drawn)


def test_a_draw_goes_to_the_device_that_is_asked_for():
    assert MIXED.sample(stream(), step=0, device="meta").device.type == "meta"


def test_the_density_is_the_known_one_in_one_two_and_three_dimensions():
    z = torch.tensor([0.3, -0.4, 1.2], dtype=torch.float64)
    assert norm([0], [2.0]).log_density(z[:1]).exp() == pytest.approx(stats.laplace(scale=0.5).pdf(0.3))
    assert norm([0, 0], [2.0]).log_density(z[:2]).exp() == pytest.approx(4 / (2 * pi) * np.exp(-2 * 0.5))
    assert norm([0, 0, 0], [2.0]).log_density(z).exp() == pytest.approx(8 / (8 * pi) * np.exp(-2 * 1.3))
    both = norm([0, 1, 0], [2.0, 3.0]).log_density(z)
    apart = norm([0, 0], [2.0]).log_density(z[[0, 2]]) + norm([0], [3.0]).log_density(z[1:2])
    assert both == pytest.approx(float(apart))


NOISES = {fit.__name__: fit(lognormal(12, zeros=3), EPSILON / SENSITIVITY) for fit in FAMILIES} | {"mixed": MIXED}


def ratios(noise, z, moved):
    return noise.log_density(z) - noise.log_density(z + moved)


def unit(x):
    return x / x.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_no_log_density_ratio_exceeds_epsilon(noise):
    z = draws(noise, 5000)
    moves = torch.randn(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lengths = torch.rand(len(z), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).sqrt()
    moved = SENSITIVITY * lengths * unit(moves)
    assert ratios(noise, z, moved).abs().max() <= EPSILON


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_the_steepest_direction_reaches_epsilon_and_no_more(noise):
    z = draws(noise, 500).requires_grad_()
    (steepest,) = torch.autograd.grad(-noise.log_density(z).sum(), z)
    found = ratios(noise, z.detach(), SENSITIVITY * unit(steepest))
    assert found.max() <= EPSILON * (1 + 1e-9)
    assert found.min() >= EPSILON * (1 - 1e-9)


@pytest.mark.parametrize("tiny", [0.0, 1e-300, 1e-12])
@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_the_border_of_a_block_is_no_way_around_epsilon(noise, tiny):
    inside = draws(noise, 200)
    for block in range(len(noise.rates)):
        at_border = torch.where(noise.block_of == block, tiny, inside)
        for moves in (torch.where(noise.block_of == block, inside, 0.0), inside, -at_border - 1e-9):
            assert ratios(noise, at_border, SENSITIVITY * unit(moves)).abs().max() <= EPSILON * (1 + 1e-9)


WRONG = {
    "floats": (torch.tensor([0.0]), torch.ones(1, dtype=torch.float64), "block_of must be a vector of int64"),
    "empty": (torch.zeros(0, dtype=torch.int64), torch.ones(0, dtype=torch.float64), "block_of must be a vector"),
    "float32 rates": (torch.tensor([0]), torch.ones(1), "rates must be a vector of float64"),
    "a rate of zero": (torch.tensor([0]), torch.zeros(1, dtype=torch.float64), "finite and above 0"),
    "an empty block": (torch.tensor([0, 2]), torch.ones(3, dtype=torch.float64), "index from 0 to 2, .* got 0 to 2"),
    "a missing block": (torch.tensor([0, 1]), torch.ones(1, dtype=torch.float64), "index from 0 to 0, .* got 0 to 1"),
    "below zero": (torch.tensor([0, -1]), torch.ones(1, dtype=torch.float64), "got -1 to 0"),
}


@pytest.mark.parametrize(("block_of", "rates", "message"), WRONG.values(), ids=WRONG)
def test_blocks_that_make_no_sense_are_refused(block_of, rates, message):
    with pytest.raises(UsageError, match=message):
        BlockNorm(block_of, rates)
