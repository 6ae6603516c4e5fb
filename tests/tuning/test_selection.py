"""What the best of a random number of trials costs, held against exact distributions of a mechanism that is tiny."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.special import ndtr

from sordino.accounting import Adjacency, GaussianCurve, Guarantee, View, all_answers, privacy_of
from sordino.accounting.dominating_pairs import ProfilePair
from sordino.accounting.pld import Direction
from sordino.accounting.rdp import ORDERS
from sordino.accounting.selection import BestOf, divergences_of_best, halting_probability
from sordino.errors import UsageError
from sordino.report.evidence import parse_event

SHAPES = [0.0, 0.5, 1.0, math.inf]


def weight_of_rank(share, mean, shape):
    """The derivative of the generating function of K at `share`: how likely a trial that beats so many is the best."""
    if math.isinf(shape):
        return mean * np.exp(mean * (share - 1))
    gamma = halting_probability(mean, shape)
    rest = 1 - (1 - gamma) * share
    if shape == 0:
        return (1 - gamma) / (rest * -math.log(gamma))
    return shape * (1 - gamma) * rest ** (-shape - 1) / (gamma**-shape - 1)


def exact_epsilon(std, mean, shape, delta):
    """Of the largest of K normals, all moved by 1 or none: their hockey-stick divergence on a fine grid, both ways.

    Whether there was no trial at all does not depend on the data, so it adds nothing at an epsilon of 0 or more.
    """
    x = np.linspace(-10 * std, 1 + 10 * std, 40_001)

    def density(centre):
        standard = (x - centre) / std
        one = np.exp(-(standard**2) / 2) / (std * math.sqrt(2 * math.pi))
        return one * weight_of_rank(ndtr(standard), mean, shape)

    absent, present = density(0.0), density(1.0)

    def excess(epsilon):
        pairs = ((absent, present), (present, absent))
        return max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in pairs) * (x[1] - x[0]) - delta

    return brentq(excess, 0.0, 20.0)


def best_of(trial, mean, shape):
    return privacy_of(RepeatAndSelectDpEvent(trial, mean, shape), Adjacency.ZERO_OUT)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("std", "mean"), [(2.0, 4.0), (8.0, 10.0)])
def test_the_bound_lies_above_what_the_best_of_some_gaussians_reveals(std, mean, shape):
    exact = exact_epsilon(std, mean, shape, delta=1e-5)
    assert exact < best_of(GaussianDpEvent(std), mean, shape).epsilon(1e-5) < 2.1 * exact


@dataclass(frozen=True)
class Discrete:
    """The exact curve of a mechanism with finitely many values, whose probabilities are known on both data sets."""

    here: np.ndarray
    there: np.ndarray
    name: str = "exact"

    def delta(self, epsilon):
        pairs = (self.here, self.there), (self.there, self.here)
        return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in pairs)

    def epsilon(self, delta):
        low, high = 0.0, 60.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high

    def best_of(self, order, mean, shape):
        """The best of K, where the last value in this order is the best."""

        def of_best(probability):
            share = np.concatenate([[0.0], np.cumsum(probability[order])]).clip(0, 1)
            return np.diff(generating_function(share, mean, shape))

        return Discrete(of_best(self.here), of_best(self.there))


def generating_function(x, mean, shape):
    if math.isinf(shape):
        return np.exp(mean * (x - 1))
    gamma = halting_probability(mean, shape)
    rest = 1 - (1 - gamma) * x
    if shape == 0:
        return np.log(rest) / math.log(gamma)
    return (rest**-shape - 1) / (gamma**-shape - 1)


def normal_in_cells(mu, cells=400):
    edges = np.concatenate([[-np.inf], np.linspace(-7, 7 + mu, cells - 1), [np.inf]])
    return Discrete(np.diff(ndtr(edges)), np.diff(ndtr(edges - mu)))


def orders(trial):
    """Values as they are, backwards, at random, and those that prepare a surprise: the best tell of the other data."""
    by_ratio = np.argsort(np.log(trial.here + 1e-300) - np.log(trial.there + 1e-300))
    yield from (by_ratio, by_ratio[::-1])
    draws = np.random.default_rng(28)
    yield from (draws.permutation(by_ratio) for _ in range(20))
    size = len(by_ratio)
    for surprise in range(size // 20, size, size // 20):
        for top in range(size // 20, size - surprise, size // 20):
            rest = by_ratio[top : size - surprise]
            yield np.concatenate([rest, by_ratio[size - surprise :], by_ratio[:top]])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mu", "mean"), [(0.5, 4.0), (0.1, 30.0), (1.5, 8.0)])
def test_the_curve_holds_in_whatever_order_the_values_are(mu, mean, shape):
    trial = normal_in_cells(mu)
    curve = BestOf(trial, mean, shape)
    for order in orders(trial):
        best = trial.best_of(order, mean, shape)
        for at in (0.05, 0.3, 1.0, 2.5, 6.0):
            assert best.delta(at) <= curve.delta(at) * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("shape", SHAPES)
def test_the_curve_is_nearly_reached_by_a_score_that_surprises(shape):
    """What is above the exact price of the largest normal is owed to scores in another order than the outcomes'."""
    trial = normal_in_cells(0.5)
    attained = max(trial.best_of(order, 4.0, shape).epsilon(1e-5) for order in orders(trial))
    promised = BestOf(trial, 4.0, shape).epsilon(1e-5)
    assert 1.1 * exact_epsilon(2.0, 4.0, shape, delta=1e-5) < attained <= promised < 1.08 * attained


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("std", "mean"), [(4.0, 4.0), (2.0, 30.0), (1.0, 8.0)])
def test_by_itself_a_selection_costs_less_by_the_curve_than_by_renyi_divergences(std, mean, shape):
    event = RepeatAndSelectDpEvent(GaussianDpEvent(std), mean, shape)
    said = {each.accountant: each.epsilon for each in all_answers(event, Adjacency.ZERO_OUT, 1e-5)}
    assert said["repeat-and-select-curve"] < 0.9 * said["repeat-and-select"]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_curve_grows_with_the_number_of_trials_and_falls_with_noise_and_delta(shape):
    def epsilon(std, mean, delta=1e-6):
        return BestOf(GaussianCurve(1 / std), mean, shape).epsilon(delta)

    assert epsilon(4.0, 1.0) >= GaussianCurve(1 / 4).epsilon(1e-6)
    assert epsilon(4.0, 2.0) < epsilon(4.0, 3.0) < epsilon(4.0, 60.0)
    assert epsilon(2.0, 3.0) > epsilon(4.0, 3.0) > epsilon(40.0, 3.0)
    assert epsilon(4.0, 3.0, 1e-9) > epsilon(4.0, 3.0, 1e-6) > epsilon(4.0, 3.0, 1e-3)
    assert epsilon(4.0, 3.0, 1e-300) == math.inf


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_pair_made_from_the_curve_of_a_gaussian_composes_as_the_gaussian_does(mu, count):
    one, all_of_them = GaussianCurve(mu), GaussianCurve(mu * math.sqrt(count))
    epsilons = np.linspace(0.0, one.epsilon(1e-22), 400)
    pair = ProfilePair(tuple(epsilons.tolist()), tuple(one.delta(each) for each in epsilons.tolist()))
    nodes = pair.losses(log_tail=-50.0)
    assert nodes.mass.sum() + nodes.infinite == pytest.approx(1.0, abs=1e-12)
    exact = all_of_them.epsilon(1e-6)
    assert exact <= Direction((pair,), (count,)).epsilon(1e-6) <= exact * (1 + 1e-3)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_stages_reveal_no_more_than_their_pairs_promise(shape):
    """Each stage in the order that is worst for it by itself, and in one that is the worst the other way round."""
    trial = normal_in_cells(0.6, cells=60)
    curve = BestOf(trial, 5.0, shape)
    worst = sorted((trial.best_of(order, 5.0, shape) for order in orders(trial)), key=lambda each: each.epsilon(1e-4))
    pair = curve.pair()
    promised = Direction((pair,), (2,))
    for first in worst[-3:]:
        for second in (worst[-1], Discrete(worst[-1].there, worst[-1].here)):
            both = Discrete(np.outer(first.here, second.here).ravel(), np.outer(first.there, second.there).ravel())
            for at in (0.0, 0.5, 2.0, 4.0):
                assert both.delta(at) <= promised.delta(at) * (1 + 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_two_stages_cost_more_than_one_and_less_than_by_renyi_divergences(shape):
    stage = RepeatAndSelectDpEvent(GaussianDpEvent(4.0), 6.0, shape)
    one = privacy_of(stage, Adjacency.ZERO_OUT).epsilon(1e-5)
    said = all_answers(ComposedDpEvent([stage, stage]), Adjacency.ZERO_OUT, 1e-5)
    assert [each.accountant for each in said] == ["repeat-and-select-curve", "repeat-and-select"]
    assert one < said[0].epsilon < 2 * one
    assert said[0].epsilon < 0.95 * said[1].epsilon


@pytest.mark.parametrize("std", [4.0, 1e4])
@pytest.mark.parametrize(("mean", "shape"), [(1.0, 0.0), (1.0, 0.5), (1.0 + 1e-7, 1.0)])
def test_two_stages_of_a_single_trial_cost_what_two_trials_cost(std, mean, shape):
    """Then the ratio is next to 1, and no points lie below it."""
    stage = RepeatAndSelectDpEvent(GaussianDpEvent(std), mean, shape)
    two = privacy_of(ComposedDpEvent([stage, stage]), Adjacency.ZERO_OUT).epsilon(1e-6)
    exact = GaussianCurve(math.sqrt(2) / std).epsilon(1e-6)
    assert exact * (1 - 1e-9) <= two <= 1.01 * exact


def test_what_has_no_pair_is_left_to_renyi_divergences():
    stage = RepeatAndSelectDpEvent(GaussianDpEvent(4.0), 6.0, 0.0)
    said = all_answers(ComposedDpEvent([stage, GaussianDpEvent(0.01)]), Adjacency.ZERO_OUT, 1e-5)
    assert [each.accountant for each in said] == ["repeat-and-select"]


@pytest.mark.parametrize("shape", SHAPES)
def test_epsilon_and_delta_of_the_curve_are_inverse(shape):
    curve = BestOf(GaussianCurve(0.4), 6.0, shape)
    for delta in (1e-2, 1e-5, 1e-12):
        assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-6)
    assert 0 < curve.delta(0.0) <= 1


@pytest.mark.parametrize("shape", SHAPES)
def test_paying_for_one_trial_is_refuted(shape):
    one = privacy_of(GaussianDpEvent(2.0), Adjacency.ZERO_OUT).epsilon(1e-5)
    assert exact_epsilon(2.0, 10.0, shape, delta=1e-5) > 1.02 * one


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [1.5, 30.0])
def test_divergences_are_those_of_dp_accounting(shape, mean):
    theirs = RdpAccountant(list(ORDERS)).compose(RepeatAndSelectDpEvent(GaussianDpEvent(5.0), mean, shape))
    ours = divergences_of_best(ORDERS / 50, mean=mean, shape=shape)
    # Theirs takes delta from Renyi divergences by another inequality, which is looser, and only for Poisson.
    assert np.all(ours <= theirs._rdp * (1 + 1e-7))
    if not math.isinf(shape):
        assert ours == pytest.approx(theirs._rdp, rel=1e-7)


@pytest.mark.parametrize("shape", [0.0, 1.0, 3.0])
def test_for_a_gaussian_the_price_of_the_others_has_a_closed_form(shape):
    """(1 + shape) (sqrt(2 log(1 / gamma)) / std - 1 / (2 std^2)): Theorem 2 with its inner order solved for."""
    std, mean = 4.0, 12.0
    inner = math.sqrt(2 * -math.log(halting_probability(mean, shape))) / std - 1 / (2 * std**2)
    at = int(np.argmin(abs(ORDERS - 32.0)))
    expected = 32 / (2 * std**2) + (1 + shape) * inner + math.log(mean) / 31
    assert expected <= divergences_of_best(ORDERS / (2 * std**2), mean=mean, shape=shape)[at] <= expected * (1 + 1e-4)


def test_the_halting_probability_of_the_geometric_distribution_is_the_limit_of_its_neighbours():
    assert halting_probability(7.0, 1 + 1e-9) == pytest.approx(1 / 7, rel=1e-6)
    assert halting_probability(7.0, 1e-9) == pytest.approx(halting_probability(7.0, 0.0), rel=1e-6)
    assert halting_probability(1.0, 0.0) == pytest.approx(1.0)


def test_a_trial_that_measures_itself_is_paid_with_its_measurement():
    training = SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(4.0)), 100)
    measured = ComposedDpEvent((training, GaussianDpEvent(3.0)))
    assert best_of(measured, 4.0, 0.0).epsilon(1e-5) > best_of(training, 4.0, 0.0).epsilon(1e-5)


def test_stages_and_other_releases_add_up():
    stage = RepeatAndSelectDpEvent(GaussianDpEvent(8.0), 4.0, 0.0)
    one = privacy_of(stage, Adjacency.ZERO_OUT).epsilon(1e-5)
    two = privacy_of(ComposedDpEvent([stage, stage]), Adjacency.ZERO_OUT).epsilon(1e-5)
    more = privacy_of(ComposedDpEvent([stage, stage, GaussianDpEvent(4.0)]), Adjacency.ZERO_OUT).epsilon(1e-5)
    assert one < two < more < 3 * one


def test_replacing_a_unit_halves_the_noise_inside_a_selection():
    replaced = privacy_of(RepeatAndSelectDpEvent(GaussianDpEvent(8.0), 4.0, 1.0), Adjacency.REPLACE_ONE)
    assert replaced.epsilon(1e-5) == best_of(GaussianDpEvent(4.0), 4.0, 1.0).epsilon(1e-5)


def test_without_noise_nothing_is_promised():
    assert best_of(NonPrivateDpEvent(), 4.0, 0.0).epsilon(1e-5) == math.inf
    assert best_of(GaussianDpEvent(0.0), 4.0, math.inf).delta(1.0) == 1


@pytest.mark.parametrize(("mean", "shape"), [(0.5, 0.0), (4.0, -0.5), (math.nan, 1.0), (4.0, math.nan)])
def test_numbers_of_trials_that_the_theorem_is_not_about_are_refused(mean, shape):
    with pytest.raises(UsageError, match="must be in"):
        best_of(GaussianDpEvent(4.0), mean, shape).epsilon(1e-5)


def test_a_guarantee_of_a_selection_is_about_the_end_only_and_has_one_for_families():
    guarantee = Guarantee.of(RepeatAndSelectDpEvent(GaussianDpEvent(9.0), 4.0, 0.0), Adjacency.ZERO_OUT, delta=1e-5)
    assert guarantee.view is View.FINAL_MODEL
    assert guarantee.accountant == "repeat-and-select-curve"
    assert 2 * guarantee.epsilon < guarantee.for_group(4) < math.inf


@pytest.mark.parametrize("shape", SHAPES)
def test_an_event_is_read_back_from_its_text(shape):
    event = ComposedDpEvent([RepeatAndSelectDpEvent(ComposedDpEvent((GaussianDpEvent(2.0),)), 4.0, shape)])
    assert parse_event(repr(event), what="the event") == event
