"""Batches of a fixed size: the dominating pair of sampling without replacement against explicit neighbors."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, SampledWithoutReplacementDpEvent, SelfComposedDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from products import product_of

from sordino.accounting import Adjacency, GaussianCurve, all_answers, privacy_of
from sordino.accounting.accountant_views import views_of
from sordino.accounting.dominating_pairs import FixedSizeBatches, GaussianMixtures
from sordino.accounting.pld import Direction, PldCurve

records = st.floats(-1.0, 1.0) | st.sampled_from([-1.0, 1.0])


def fixed_size(examples, batch, multiplier, steps=1):
    return SelfComposedDpEvent(SampledWithoutReplacementDpEvent(examples, batch, GaussianDpEvent(multiplier)), steps)


def epsilon(event, delta=1e-6):
    return privacy_of(event, Adjacency.REPLACE_ONE).epsilon(delta)


def pld_epsilon(examples, batch, multiplier, steps, delta):
    view = views_of(
        SampledWithoutReplacementDpEvent(examples, batch, GaussianDpEvent(multiplier)), Adjacency.REPLACE_ONE
    ).pld
    return PldCurve.of([(view, steps)]).epsilon(delta)


def promised(multiplier, rate, alpha):
    """The bound of the theorem on the hockey-stick divergence at any alpha >= 0, from the exact curve of a Gaussian."""
    if alpha < 1:
        return 1 - alpha + alpha * promised(multiplier, rate, 1 / alpha)
    return rate * GaussianCurve(2 / multiplier).delta(math.log1p((alpha - 1) / rate))


def divergence(pair, alpha, interval=1e-3):
    """The hockey-stick divergence of a pair from its losses, accurate if log(alpha) is a multiple of the interval."""
    losses = pair.losses(-60.0, interval)
    return float((losses.mass * np.maximum(1 - alpha * np.exp(-losses.loss), 0)).sum()) + losses.infinite


@pytest.mark.parametrize(
    ("multiplier", "rate", "log_alpha"),
    product_of([0.1, 0.6, 2.0, 40.0], [1e-6, 0.02, 0.7], [-5.0, -0.5, -0.001, 0.0, 0.001, 0.2, 3.0]),
)
def test_the_pair_has_the_divergences_of_the_theorem_on_both_sides_of_one(multiplier, rate, log_alpha):
    alpha = math.exp(log_alpha)
    found = divergence(FixedSizeBatches(multiplier / 2, rate), alpha, interval=1e-3 if multiplier > 0.1 else 0.1)
    assert found == pytest.approx(promised(multiplier, rate, alpha), rel=1e-9, abs=1e-14)


def density_of_sum(data, batch, std, x):
    """The density at `x` of the noisy sum of a uniform subset, by enumeration of all subsets."""
    sums = np.array([sum(chosen) for chosen in itertools.combinations(data, batch)])
    return np.exp(-(((x[:, None] - sums) / std) ** 2) / 2).mean(axis=1) / (std * math.sqrt(2 * math.pi))


@settings(max_examples=25, deadline=None)
@given(st.lists(records, min_size=5, max_size=5), records, st.integers(1, 3), st.sampled_from([0.3, 0.8, 2.0, 6.0]))
def test_no_neighbours_are_easier_to_tell_apart_than_the_dominating_pair(data, replacement, batch, multiplier):
    """Tested for every alpha, also below 1, because composition needs these."""
    x = np.linspace(-6 - 9 * multiplier, 6 + 9 * multiplier, 40_001)
    here = density_of_sum(data, batch, multiplier, x)
    there = density_of_sum([replacement, *data[1:]], batch, multiplier, x)
    for alpha in (0.05, 0.5, 0.9, 1.0, 1.1, 2.0, 20.0):
        for upper, lower in ((here, there), (there, here)):
            found = float(np.maximum(upper - alpha * lower, 0).sum() * (x[1] - x[0]))
            assert found <= promised(multiplier, batch / 5, alpha) + 1e-7


@pytest.mark.parametrize("multiplier", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("batch", [1, 3])
def test_one_record_against_all_others_attains_it_on_either_side_of_one(batch, multiplier):
    x = np.linspace(-6 - 9 * multiplier, 6 + 9 * multiplier, 40_001)
    alone = density_of_sum([1.0, -1.0, -1.0, -1.0, -1.0], batch, multiplier, x)
    alike = density_of_sum([-1.0] * 5, batch, multiplier, x)
    for alpha in (0.3, 0.8, 1.0, 1.2, 3.0):
        upper, lower = (alone, alike) if alpha >= 1 else (alike, alone)
        found = float(np.maximum(upper - alpha * lower, 0).sum() * (x[1] - x[0]))
        assert found == pytest.approx(promised(multiplier, batch / 5, alpha), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("log_alphas", [(0.05, 0.5, 3.0), (-3.0, -0.5, -0.05)])
def test_neither_of_the_two_mixtures_dominates_by_itself(log_alphas):
    """Lebeda et al. (2024): the pair that is the worst above 1 is not the worst below 1, and the reverse."""
    one_way = GaussianMixtures(1.0, ((0.9, 0.0), (0.1, 1.0)), ((1.0, 0.0),))
    back = GaussianMixtures(1.0, ((1.0, 0.0),), ((0.9, 0.0), (0.1, -1.0)))

    for alpha in map(math.exp, log_alphas):
        worse, milder = (one_way, back) if alpha > 1 else (back, one_way)
        assert divergence(milder, alpha) < divergence(worse, alpha)
        assert divergence(worse, alpha) == pytest.approx(promised(2.0, 0.1, alpha), rel=1e-9)


@pytest.mark.parametrize(
    ("multiplier", "batches", "at"),
    product_of([0.6, 2.0, 8.0], [(60_000, 256), (10, 3), (10, 9)], [0.0, 0.01, 0.5, 3.0]),
)
def test_one_step_is_the_amplified_gaussian(multiplier, batches, at):
    """rate * delta(log(1 + (exp(epsilon) - 1) / rate)), with the exact curve of a Gaussian at twice the distance."""
    examples, batch = batches
    rate = batch / examples
    exact = rate * GaussianCurve(2 / multiplier).delta(math.log1p(math.expm1(at) / rate))
    found = privacy_of(fixed_size(examples, batch, multiplier), Adjacency.REPLACE_ONE).delta(at)
    assert exact <= found <= exact * 1.04 or exact < 1e-40


def test_two_steps_in_the_plane_reveal_no_more_than_is_promised():
    """Neighbors may be worse in one direction in the first step, and in the other one in the second."""
    multiplier, batch = 1.5, 2
    x = np.linspace(-14, 14, 1401)
    alone = density_of_sum([1.0, -1.0, -1.0, -1.0, -1.0], batch, multiplier, x)
    alike = density_of_sum([-1.0] * 5, batch, multiplier, x)
    curve = privacy_of(fixed_size(5, 2, multiplier, steps=2), Adjacency.REPLACE_ONE)
    for at in (0.0, 0.5, 1.5):
        for first, second in itertools.product([(alone, alike), (alike, alone)], [(alone, alike), (alike, alone)]):
            for upper, lower in (second, (second[0][::-1], second[1][::-1])):
                plane = np.outer(first[0], upper) - math.exp(at) * np.outer(first[1], lower)
                assert float(np.maximum(plane, 0).sum()) * (x[1] - x[0]) ** 2 <= curve.delta(at) * (1 + 1e-6)


LOWER = [
    # examples, batch, multiplier, steps, delta, and how far the bound may be above the worse of three neighbours
    (60_000, 256, 1.1, 14_062, 1e-5, 1.26),
    (50_000, 500, 2.0, 2000, 1e-5, 1.25),
    (1000, 100, 4.0, 500, 1e-5, 1.14),
    (60_000, 256, 0.6, 500, 1e-6, 1.03),
    (10_000, 5000, 20.0, 100, 1e-5, 1.02),
]


@pytest.mark.parametrize(("examples", "batch", "multiplier", "steps", "delta", "ratio"), LOWER)
def test_the_bound_lies_between_concrete_neighbours_and_renyi(examples, batch, multiplier, steps, delta, ratio):
    rate = batch / examples
    joined, left = ((1 - rate, 0.0), (rate, 1.0)), ((1 - rate, 0.0), (rate, -1.0))
    neighbours = [
        GaussianMixtures(multiplier / 2, joined, ((1.0, 0.0),)),  # one record against all others
        GaussianMixtures(multiplier / 2, ((1.0, 0.0),), left),  # the same, the other way round
        GaussianMixtures(multiplier, joined, left),  # two opposite records among zeros
    ]
    lower = max(Direction((pair,), (steps,)).epsilon(delta) for pair in neighbours)
    said = {
        each.accountant: each.epsilon
        for each in all_answers(fixed_size(examples, batch, multiplier, steps), Adjacency.REPLACE_ONE, delta)
    }
    assert lower <= said["pld"] <= ratio * lower
    assert said["pld"] < min(said["rdp"], said["composition-without-amplification"])


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 999), st.floats(0.4, 50.0), st.integers(1, 2000), st.sampled_from([1e-3, 1e-6, 1e-20]))
def test_epsilon_falls_with_noise_and_delta_and_grows_with_the_batch_and_steps(batch, multiplier, steps, delta):
    here, slack = pld_epsilon(1000, batch, multiplier, steps, delta), 1 + 1e-3
    assert 0 <= here < math.inf
    assert pld_epsilon(1000, batch, 1.1 * multiplier, steps, delta) <= here * slack
    assert pld_epsilon(1000, batch, multiplier, steps + 1 + steps // 10, delta) * slack >= here
    assert pld_epsilon(1000, batch + 1, multiplier, steps, delta) * slack >= here
    assert pld_epsilon(1000, batch, multiplier, steps, delta / 10) * slack >= here
    assert here <= GaussianCurve(2 * math.sqrt(steps) / multiplier).epsilon(delta) * slack


def test_a_batch_of_nearly_everybody_costs_nearly_what_the_gaussian_costs():
    exact = GaussianCurve(2 * math.sqrt(10) / 5).epsilon(1e-6)
    assert epsilon(fixed_size(10**9, 10**9 - 1, 5.0, 10)) == pytest.approx(exact, rel=2e-3)
    assert epsilon(fixed_size(10**9, 10**9, 5.0, 10)) == pytest.approx(exact, rel=1e-9)
