"""Randomized response is the worst case of pure mechanisms, and composes exactly."""

import math

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import common, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import two_point_delta, two_point_renyi
from pure_steps import REPLACE_ONE, ZERO_OUT, cost, deltas, epsilons, quickly, rates, sampled, steps
from scipy.special import ndtr

from sordino.accounting import PureDpEvent, all_answers, privacy_of
from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.pld import Direction, PldCurve, dominating_pairs
from sordino.accounting.pure import MOST_EXACT_STEPS, Binomial
from sordino.accounting.randomized_response import RandomizedResponse, epsilon_of_replacing, log_mixed
from sordino.accounting.rdp import ORDERS, renyi


@pytest.mark.parametrize(("epsilon", "rate", "count"), [(1.0, 1.0, 1), (0.5, 0.1, 12), (3.0, 0.01, 40), (0.1, 1.0, 60)])
@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-15, 1e-60])
def test_a_composition_of_equal_steps_is_exact(epsilon, rate, count, delta):
    found = PldCurve.of([(AccountantView(sampled(epsilon, rate).event), count)]).epsilon(delta)
    assert two_point_delta(epsilon, rate, count, found) <= delta
    if found > 0:
        assert two_point_delta(epsilon, rate, count, found * (1 - 1e-6)) > delta


@pytest.mark.parametrize(("epsilon", "rate", "count"), [(1.0, 1.0, 3), (0.5, 0.1, 12), (6.0, 1e-3, 40)])
@pytest.mark.parametrize("at", [0.0, 0.2, 1.0])
def test_delta_of_equal_steps_is_exact(epsilon, rate, count, at):
    exact = two_point_delta(epsilon, rate, count, at)
    found = PldCurve.of([(AccountantView(sampled(epsilon, rate).event), count)]).delta(at)
    assert exact <= found <= exact * (1 + 1e-8)


@pytest.mark.parametrize(("epsilon", "rate"), [(1.0, 1.0), (0.3, 0.05), (5.0, 0.01), (1e-4, 0.5), (15.0, 0.9)])
@pytest.mark.parametrize("order", [1.1, 2.0, 7.5, 64.0, 16384.0])
def test_divergences_equal_their_definition_in_high_precision(epsilon, rate, order):
    at = int(np.argmin(abs(ORDERS - order)))
    found = renyi(AccountantView(sampled(epsilon, rate).event))
    for ours, exact in zip(found, two_point_renyi(epsilon, rate, ORDERS[at]), strict=True):
        assert exact <= ours[at] <= exact * (1 + 1e-4)


@quickly
@given(epsilons, st.integers(1, 300), deltas)
def test_a_grid_comes_out_just_above_the_exact_composition(epsilon, count, delta):
    response = RandomizedResponse(epsilon, 0.2, present_above=True)
    exact = Binomial(response, count).epsilon(delta)
    assert Direction((response,), (count,)).epsilon(delta) >= exact * (1 - 1e-9)


def test_a_grid_takes_over_where_there_are_too_many_steps_to_count():
    pairs = dominating_pairs(AccountantView(sampled(0.5, 1e-3).event))
    exact = max(Binomial(pair, MOST_EXACT_STEPS).epsilon(1e-5) for pair in pairs)
    on_a_grid = PldCurve.of([(AccountantView(sampled(0.5, 1e-3).event), MOST_EXACT_STEPS + 1)]).epsilon(1e-5)
    assert exact < on_a_grid < exact * 1.001


def test_steps_of_two_kinds_lie_between_direct_sums_with_the_one_made_weaker_or_stronger():
    both = cost(ComposedDpEvent([sampled(0.5, 0.1, 20), sampled(0.6, 0.1, 20)]), 1e-5)
    assert cost(sampled(0.5, 0.1, 40), 1e-5) < both < cost(sampled(0.6, 0.1, 40), 1e-5)


@pytest.mark.parametrize("at", [0.0, 0.5, 2.0])
def test_one_pure_step_beside_a_gaussian_is_a_mixture_of_two_gaussian_curves(at):
    epsilon, mu = 0.7, 0.9
    truth = 1 / (1 + math.exp(-epsilon))

    def gaussian(x):
        return ndtr(mu / 2 - x / mu) - math.exp(x) * ndtr(-mu / 2 - x / mu)

    exact = truth * gaussian(at - epsilon) + (1 - truth) * gaussian(at + epsilon)
    both = ComposedDpEvent([PureDpEvent(1 / epsilon), GaussianDpEvent(1 / mu)])
    assert exact <= privacy_of(both, ZERO_OUT).delta(at) <= exact * 1.01


def test_steps_of_every_kind_compose_with_gaussian_ones():
    mixed = ComposedDpEvent([sampled(0.5, 0.1, 30), PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), PureDpEvent(9.0)])
    said = {each.accountant: each.epsilon for each in all_answers(mixed, ZERO_OUT, 1e-5)}
    assert set(said) == {"pld", "rdp", "composition-without-amplification"}
    assert said["pld"] > max(cost(part, 1e-5) for part in mixed.events)


@settings(max_examples=8)
@given(st.floats(0.05, 3.0), rates, st.integers(1, 50), st.sampled_from([1e-2, 1e-5, 1e-12]))
def test_no_noise_of_the_same_epsilon_costs_more(epsilon, rate, count, delta):
    laplace = PldCurve.of([(AccountantView(PoissonSampledDpEvent(rate, LaplaceDpEvent(1 / epsilon))), count)])
    pure = PldCurve.of([(AccountantView(sampled(epsilon, rate).event), count)])
    assert laplace.epsilon(delta) <= pure.epsilon(delta) * 1.01  # a grid is a little above the truth


@quickly
@given(epsilons, rates, st.integers(0, 2**32))
def test_no_mechanism_that_is_pure_tells_more_than_its_sight(epsilon, rate, seed):
    """Random distributions without the unit, and with it or its replacement, as different as epsilon allows."""
    generator = np.random.default_rng(seed)
    without, outcomes = generator.dirichlet(np.ones(6)), generator.permutation(6)
    joined = _raised(without, outcomes[: generator.integers(1, 5)], epsilon)
    replaced = _raised(without, outcomes[generator.integers(1, 5) :], epsilon)
    here, there = rate * joined + (1 - rate) * without, rate * replaced + (1 - rate) * without
    for adjacency, upper, lower in [(ZERO_OUT, here, without), (ZERO_OUT, without, here), (REPLACE_ONE, here, there)]:
        curve = privacy_of(sampled(epsilon, rate), adjacency)
        assert np.log(upper / lower).max() <= curve.epsilon(0.0) * (1 + 1e-9) + 1e-14  # a ratio is rounded to 1e-16
        for at in (0.0, curve.epsilon(0.0) / 2):
            assert np.maximum(upper - math.exp(at) * lower, 0).sum() <= curve.delta(at) * (1 + 1e-9) + 1e-15


def _raised(without, outcomes, epsilon):
    """The distribution in which these outcomes are as likely, and the others as unlikely, as an epsilon allows."""
    chosen = np.isin(np.arange(len(without)), outcomes)
    mass = without[chosen].sum()
    up = min(math.exp(epsilon), (1 - math.exp(-epsilon) * (1 - mass)) / mass)
    return without * np.where(chosen, up, (1 - up * mass) / (1 - mass))


def test_the_bounds_of_replacing_are_attained():
    """P is exp(epsilon) R and Q is exp(-epsilon) R on one outcome, which is rare under R."""
    epsilon, rate = 1.3, 0.2
    rare = 1e-3
    here = rate * math.exp(epsilon) * rare + (1 - rate) * rare
    there = rate * math.exp(-epsilon) * rare + (1 - rate) * rare
    assert cost(sampled(epsilon, rate), 0.0, REPLACE_ONE) == pytest.approx(math.log(here / there))
    of_five_hundred = SampledWithoutReplacementDpEvent(1000, 500, PureDpEvent(1 / epsilon))
    other = 0.5 * math.exp(2 * epsilon) * rare + 0.5 * rare
    assert cost(of_five_hundred, 0.0, REPLACE_ONE) == pytest.approx(math.log(other / rare))


@quickly
@given(epsilons, rates, steps, deltas)
def test_two_losses_are_never_worse_than_randomized_response_of_the_amplified_epsilon(epsilon, rate, count, delta):
    looser = sampled(log_mixed(rate, epsilon), 1.0, count)
    assert cost(sampled(epsilon, rate, count), delta) <= cost(looser, delta) * (1 + 1e-9)


def test_unsampled_steps_agree_with_dp_accounting():
    step = 2.0**-6  # a multiple of its grid's interval, so that it rounds nothing
    theirs = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(step, 0.0), value_discretization_interval=2.0**-12
    ).self_compose(1171)
    assert cost(sampled(step, 1.0, 1171), 1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=1e-4)


def test_a_setting_of_a_small_network_costs_what_is_known_of_it():
    """1171 steps of epsilon 0.478 at a rate of 0.034: just below 3 by the looser composition, 2.28 by the pair."""
    assert cost(sampled(log_mixed(0.034, 0.478), 1.0, 1171), 1e-5) == pytest.approx(2.9331, abs=1e-4)
    assert cost(sampled(0.478, 0.034, 1171), 1e-5) == pytest.approx(2.2846, abs=1e-3)


@quickly
@given(epsilons, rates)
def test_replacing_costs_at_most_two_absences_and_nearly_that_much_if_everybody_joins(epsilon, rate):
    assert epsilon_of_replacing(rate, epsilon) <= 2 * epsilon
    assert epsilon_of_replacing(1 - 1e-12, epsilon) == pytest.approx(2 * epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-9, 1.0, 30.0, 800.0])
@pytest.mark.parametrize("rate", [1e-12, 0.3, 1 - 1e-12, 1.0])
def test_the_mixed_ratio_keeps_its_digits(epsilon, rate):
    with mp.workdps(80):
        for signed in (epsilon, -epsilon):
            exact = mp.log(1 - mp.mpf(rate) + mp.mpf(rate) * mp.exp(signed))
            assert log_mixed(rate, signed) == pytest.approx(float(exact), rel=1e-12)
