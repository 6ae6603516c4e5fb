import math

import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from oracles import epsilon_by_convolution, hockey_stick

from sordino.accounting import GaussianCurve
from sordino.accounting.accountant_views import REPLACE_ONE, REPLACE_SPECIAL, AccountantView
from sordino.accounting.pld import PldCurve, dominating_pairs


def poisson(rate, multiplier, relation=None):
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))
    return AccountantView(event, relation) if relation else AccountantView(event)


@pytest.mark.parametrize(("rate", "multiplier"), [(0.5, 1.0), (0.01, 0.5), (1e-4, 3.0), (0.9, 0.3)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12, 1e-40])
def test_one_poisson_step_equals_a_quadrature_in_high_precision(rate, multiplier, delta):
    epsilon = PldCurve.of([(poisson(rate, multiplier), 1)]).epsilon(delta)
    present, absent = [(1 - rate, 0.0), (rate, 1.0)], [(1.0, 0.0)]
    mirrored = [(1 - rate, 0.0), (rate, -1.0)]

    def true_delta(at):
        return max(hockey_stick(present, absent, multiplier, at), hockey_stick(absent, mirrored, multiplier, at))

    assert true_delta(epsilon) <= delta
    if epsilon > 0:
        assert true_delta(epsilon * (1 - 5e-3)) > delta


@pytest.mark.parametrize(("rate", "multiplier"), [(0.5, 1.0), (0.01, 0.5), (0.1, 4.0)])
def test_replace_one_doubles_the_distance_by_itself(rate, multiplier):
    """The multiplier under replace-one is that of one unit: the pair puts the two records on opposite sides."""
    upper, lower = [(1 - rate, 0.0), (rate, 1.0)], [(1 - rate, 0.0), (rate, -1.0)]
    curve = PldCurve.of([(poisson(rate, multiplier, REPLACE_ONE), 1)])
    for epsilon in (0.1, 0.5, 1.0):
        assert curve.delta(epsilon) == pytest.approx(
            hockey_stick(upper, lower, multiplier, epsilon), rel=1e-2, abs=1e-18
        )


@pytest.mark.parametrize("angle", [0.0, 0.5, 1.5, 2.5, math.pi])
@pytest.mark.parametrize("norms", [(1.0, 1.0), (1.0, 0.3)])
def test_no_two_records_are_easier_to_tell_apart_than_opposite_ones(angle, norms):
    """Replace-one in the plane: q N(v) + (1-q) N(0) against q N(w) + (1-q) N(0), for any v and w in the unit ball."""
    rate, std = 0.3, 0.8
    axis = np.linspace(-8, 8, 801)
    x, y = np.meshgrid(axis, axis)

    def density(norm, direction):
        a, b = norm * math.cos(direction), norm * math.sin(direction)
        joined = np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * std**2))
        return (rate * joined + (1 - rate) * np.exp(-(x**2 + y**2) / (2 * std**2))) / (2 * math.pi * std**2)

    upper, lower = density(norms[0], 0.0), density(norms[1], angle)
    curve = PldCurve.of([(poisson(rate, std, REPLACE_ONE), 1)])
    for epsilon in (0.0, 0.3, 1.0):
        plane = float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum()) * (axis[1] - axis[0]) ** 2
        assert plane <= curve.delta(epsilon) * (1 + 1e-3)


@pytest.mark.parametrize("delta", [1e-3, 1e-8, 1e-30, 1e-200])
@pytest.mark.parametrize(("multiplier", "steps"), [(5.0, 10), (0.5, 1), (100.0, 10**6), (30.0, 7)])
def test_composed_gaussians_come_out_just_above_the_exact_curve(multiplier, steps, delta):
    exact = GaussianCurve(math.sqrt(steps) / multiplier).epsilon(delta)
    found = PldCurve.of([(AccountantView(GaussianDpEvent(multiplier)), steps)]).epsilon(delta)
    assert exact <= found <= exact * (1 + 1e-3)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0, 20.0])
def test_delta_of_composed_gaussians_comes_out_just_above_the_exact_one(epsilon):
    exact = GaussianCurve(math.sqrt(10) / 5).delta(epsilon)
    assert exact <= PldCurve.of([(AccountantView(GaussianDpEvent(5.0)), 10)]).delta(epsilon) <= exact * 1.06


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.01, 0.5, 3), (1e-4, 0.6, 4), (0.3, 0.8, 3)])
@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-20])
def test_few_steps_with_rare_large_losses_lie_between_direct_sums_rounded_down_and_up(rate, multiplier, steps, delta):
    epsilon = PldCurve.of([(poisson(rate, multiplier), steps)]).epsilon(delta)
    assert epsilon >= epsilon_by_convolution(rate, multiplier, steps, delta, upwards=False)
    assert epsilon <= epsilon_by_convolution(rate, multiplier, steps, delta, upwards=True)


@pytest.mark.parametrize(("rate", "multiplier", "steps"), [(0.01, 1.0, 1000), (0.3, 2.0, 50), (0.001, 0.7, 300)])
def test_epsilon_lies_above_what_an_optimistic_grid_proves_to_be_needed(rate, multiplier, steps):
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    ).self_compose(steps)
    epsilon = PldCurve.of([(poisson(rate, multiplier), steps)]).epsilon(1e-6)
    assert epsilon >= optimistic.get_epsilon_for_delta(1e-6)


@pytest.mark.parametrize(
    ("view", "steps"),
    [
        (AccountantView(LaplaceDpEvent(5.0)), 20),
        (AccountantView(PoissonSampledDpEvent(0.2, LaplaceDpEvent(1.5))), 20),
        (poisson(0.05, 1.0, REPLACE_ONE), 20),
        (AccountantView(TruncatedSubsampledGaussianDpEvent(1000, 0.05, 60, 2.0), REPLACE_SPECIAL), 20),
        (AccountantView(TruncatedSubsampledGaussianDpEvent(1000, 0.05, 60, 2.0), REPLACE_ONE), 20),
        (AccountantView(MixtureOfGaussiansDpEvent(3.0, (0.0, 1.0, 2.0), (0.5, 0.3, 0.2))), 20),
    ],
)
def test_every_pair_agrees_with_dp_accounting(view, steps):
    theirs = PLDAccountant(view.relation, value_discretization_interval=1e-3)
    theirs.compose(SelfComposedDpEvent(view.event, steps))
    assert PldCurve.of([(view, steps)]).epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=2e-3)


def test_probabilities_add_up_to_one():
    for view in (poisson(0.01, 0.3), poisson(0.5, 50.0, REPLACE_ONE), AccountantView(LaplaceDpEvent(0.7))):
        for pair in dominating_pairs(view):
            for interval in (None, 1e-3):
                losses = pair.losses(-40.0, interval)
                assert losses.mass.sum() + losses.infinite == pytest.approx(1.0, abs=1e-12)


def test_two_halves_compose_to_the_whole():
    halves = PldCurve.of([(poisson(0.01, 1.0), 400), (poisson(0.01, 1.0), 600)])
    whole = PldCurve.of([(poisson(0.01, 1.0), 1000)])
    assert halves.epsilon(1e-6) == pytest.approx(whole.epsilon(1e-6), rel=1e-3)


def test_epsilon_and_delta_are_inverse():
    curve = PldCurve.of([(poisson(0.02, 1.5), 500)])
    for delta in (1e-4, 1e-9, 1e-20):
        assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-2)


def test_without_noise_worth_mentioning_it_does_not_answer():
    assert PldCurve.of([(poisson(0.1, 1e-4), 10)]).epsilon(1e-5) == math.inf
    assert PldCurve.of([(poisson(0.1, 1e-4), 10)]).delta(1.0) == 1
