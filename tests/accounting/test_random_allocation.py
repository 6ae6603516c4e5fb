import itertools
import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from oracles import allocation_hockey_stick, moment_by_partitions
from products import product_of

from sordino.accounting import Adjacency, GaussianCurve, RandomAllocationDpEvent, all_answers, balls_in_bins, privacy_of
from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.balls_in_bins import AllocatedGaussian, mean_ratio, renyi_of_adding, renyi_of_removing
from sordino.accounting.pld import Direction, PldCurve
from sordino.accounting.rdp import ORDERS as RDP_ORDERS
from sordino.accounting.rdp import RdpCurve

ORDERS = np.array([1.1, 1.5, 2.0, 3.0, 7.3, 20.0, 64.0])


@pytest.mark.parametrize("multiplier", [0.4, 1.0, 5.0])
def test_one_bin_is_a_plain_gaussian(multiplier):
    plain = ORDERS / (2 * multiplier**2)
    adding = renyi_of_adding(multiplier, 1, ORDERS)
    whole = ORDERS == np.floor(ORDERS)
    assert np.all(adding >= plain * (1 - 1e-12))
    assert np.allclose(adding[ORDERS >= 1.5], plain[ORDERS >= 1.5], rtol=1e-8)
    assert np.allclose(renyi_of_removing(multiplier, 1, ORDERS)[whole], plain[whole], rtol=1e-8)


@pytest.mark.parametrize(("bins", "order"), [(2, 2), (2, 7), (3, 5), (4, 4)])
@pytest.mark.parametrize("multiplier", [0.5, 2.0])
def test_moments_of_removing_equal_the_sum_over_partitions(bins, order, multiplier):
    ours = renyi_of_removing(multiplier, bins, np.array([float(order)]))[0] * (order - 1)
    assert ours == pytest.approx(moment_by_partitions(order, bins, multiplier), rel=1e-8)
    assert ours >= moment_by_partitions(order, bins, multiplier)


@pytest.mark.parametrize("order", [1.5, 2.0, 5.0])
def test_moments_of_adding_equal_a_quadrature_over_the_plane(order):
    multiplier, x = 0.8, np.linspace(-14, 14, 2801) * 0.8
    y = np.exp((x - 0.5) / multiplier**2)
    density = np.exp(-(x**2) / (2 * multiplier**2)) / (multiplier * math.sqrt(2 * math.pi)) * (x[1] - x[0])
    moment = density @ ((y[:, None] + y) / 2) ** (1 - order) @ density
    exact = math.log(moment) / (order - 1)
    assert renyi_of_adding(multiplier, 2, np.array([order]))[0] == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(("setting", "delta"), product_of([(2, 0.6), (2, 2.0), (3, 0.7), (3, 1.5)], [1e-2, 1e-4, 1e-6]))
def test_epsilon_of_one_epoch_is_never_below_the_true_one(setting, delta):
    bins, multiplier = setting
    said = all_answers(RandomAllocationDpEvent(multiplier, bins, 1), Adjacency.ZERO_OUT, delta)

    def true_delta(epsilon):
        return max(allocation_hockey_stick(multiplier, bins, epsilon, removing=removing) for removing in (True, False))

    for answer in said:
        assert true_delta(answer.epsilon) <= delta * (1 + 1e-5), answer
    assert said[0].accountant == "pld"
    assert true_delta(said[0].epsilon * (1 - 1e-3)) > delta


def test_more_epochs_cost_more():
    events = [RandomAllocationDpEvent(1.4518, 50, epochs) for epochs in (1, 4, 40)]
    epsilons = [privacy_of(event, Adjacency.ZERO_OUT).epsilon(1e-5) for event in events]
    assert epsilons == sorted(epsilons)


def test_the_shift_of_jensens_bound_is_paid_in_every_epoch():
    """Above the orders computed exactly there is Jensen's bound alone: (order / bins + 1 - 1 / bins) / (2 s^2)."""
    view = AccountantView(RandomAllocationDpEvent(1.0, 50, 1))
    ten_epochs = RdpCurve.of([(view, 10)]).adding[-1]
    assert ten_epochs == pytest.approx(10 * (RDP_ORDERS[-1] / 50 + 1 - 1 / 50) / 2)


@pytest.mark.parametrize(
    ("setting", "epsilon", "removing"),
    product_of([(2, 0.3), (2, 2.0), (3, 0.7), (3, 1.5)], [0.1, 1.0, 3.0], [True, False]),
)
def test_each_direction_of_the_pair_comes_out_just_above_a_quadrature(setting, epsilon, removing):
    bins, multiplier = setting
    exact = allocation_hockey_stick(multiplier, bins, epsilon, removing=removing)
    pair = AllocatedGaussian(multiplier, bins, present_above=removing)
    assert exact * (1 - 3e-5) <= Direction((pair,), (1,)).delta(epsilon) <= exact * (1 + 6e-3)


@pytest.mark.parametrize(
    ("bins", "multiplier", "log_tail"), product_of([1, 2, 3, 7, 60, 1000], [0.05, 0.8, 100.0], [-50.0, -750.0])
)
def test_the_ratio_keeps_its_probability_and_its_mean(bins, multiplier, log_tail):
    """The bound holds because splitting spreads the ratio without moving its mean."""
    ratio = mean_ratio(multiplier, bins, log_tail)
    assert (ratio.mass >= 0).all()
    assert ratio.mass.sum() + ratio.zero == pytest.approx(1.0, rel=1e-11)
    assert ratio.mass @ ratio.ratios + ratio.escaped == pytest.approx(1.0, rel=1e-11)
    assert max(ratio.zero, ratio.escaped) <= math.exp(max(log_tail, -250))


@pytest.mark.parametrize("bins", [1, 3, 50])
def test_a_coarser_grid_is_less_private(bins, monkeypatch):
    found = []
    for places in (4096, 1024, 256):
        monkeypatch.setattr(balls_in_bins, "MOST_PLACES", places)
        balls_in_bins.mean_ratio.cache_clear()
        pairs = [AllocatedGaussian(1.3, bins, present_above=above) for above in (True, False)]
        found.append([Direction((pair,), (4,)).epsilon(1e-6) for pair in pairs])
    balls_in_bins.mean_ratio.cache_clear()
    fine, coarse, coarsest = found
    assert all(a < b < c < 1.2 * a for a, b, c in zip(fine, coarse, coarsest, strict=True))


@pytest.mark.parametrize(("multiplier", "bins", "epochs", "epsilon"), [(1.0, 20, 5, 1.5), (3.0, 20, 10, 0.5)])
@pytest.mark.parametrize("removing", [True, False])
def test_several_epochs_agree_with_random_draws(multiplier, bins, epochs, epsilon, removing):
    draws, total = np.random.default_rng(28), 0.0
    for _ in range(epochs):
        x = draws.normal(0.0, multiplier, (20_000, bins))
        x[:, 0] += removing  # which bin it is does not matter
        total = total + np.log(np.exp((x - 0.5) / multiplier**2).mean(axis=1)) * (1 if removing else -1)
    excess = np.maximum(-np.expm1(epsilon - total), 0)
    error = excess.std() / math.sqrt(len(excess))
    pair = AllocatedGaussian(multiplier, bins, present_above=removing)
    assert Direction((pair,), (epochs,)).delta(epsilon) == pytest.approx(excess.mean(), abs=4 * error)


@pytest.mark.parametrize(
    ("multiplier", "bins", "epochs", "lower", "upper"),
    # Intervals of PLD_accounting 2.0 at delta = 1e-5, 100 to 200 seconds each.
    [(1.4518, 50, 40, 2.859, 2.950), (3.4472, 50, 40, 0.966, 1.011), (2.0, 60, 40, 1.677, 1.742)],
)
def test_the_answer_lies_in_the_certified_interval_and_the_closed_form_little_above(
    multiplier, bins, epochs, lower, upper
):
    best, *others = all_answers(RandomAllocationDpEvent(multiplier, bins, epochs), Adjacency.ADD_OR_REMOVE, 1e-5)
    assert best.accountant == "pld"
    assert lower <= best.epsilon <= upper
    assert others[0].accountant == "random-allocation"
    assert best.epsilon < others[0].epsilon <= 1.1 * upper


@pytest.mark.parametrize(
    "delta", [1e-3, pytest.param(1e-6, marks=pytest.mark.slow), pytest.param(1e-30, marks=pytest.mark.slow)]
)
def test_epsilon_falls_with_bins_and_noise_and_grows_with_epochs(delta):
    def epsilon(multiplier, bins, epochs):
        return PldCurve.of([(AccountantView(RandomAllocationDpEvent(multiplier, bins, 1)), epochs)]).epsilon(delta)

    for falling in ([(1.5, bins, 3) for bins in (1, 2, 3, 7, 8, 9, 100)], [(s, 9, 3) for s in (0.3, 1.0, 1.1, 20.0)]):
        found = [epsilon(*setting) for setting in falling]
        assert all(after < before for before, after in itertools.pairwise(found))
    assert epsilon(1.5, 9, 3) < epsilon(1.5, 9, 4) < epsilon(1.5, 9, 40)
    assert epsilon(1.5, 1, 3) == pytest.approx(GaussianCurve(math.sqrt(3) / 1.5).epsilon(delta), rel=1e-3)


def test_under_replace_one_the_allocation_is_forgotten():
    answer = privacy_of(RandomAllocationDpEvent(3.0, 50, 9), Adjacency.REPLACE_ONE).answer(1e-5)
    assert answer.accountant == "composition-without-amplification"
    assert answer.epsilon == pytest.approx(GaussianCurve(2.0).epsilon(1e-5))


def test_one_bin_is_answered_exactly():
    answer = privacy_of(RandomAllocationDpEvent(3.0, 1, 9), Adjacency.ZERO_OUT).answer(1e-5)
    assert answer == privacy_of(SelfComposedDpEvent(GaussianDpEvent(3.0), 9), Adjacency.ZERO_OUT).answer(1e-5)


def test_it_composes_with_other_releases():
    allocation = RandomAllocationDpEvent(2.0, 60, 10)
    both = SelfComposedDpEvent(allocation, 2)
    assert privacy_of(both, Adjacency.ZERO_OUT).epsilon(1e-5) == pytest.approx(
        privacy_of(RandomAllocationDpEvent(2.0, 60, 20), Adjacency.ZERO_OUT).epsilon(1e-5)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("multiplier", "bins", "epochs"), [(1.0, 10, 1), (2.0, 20, 5)])
def test_the_package_that_does_the_same_gives_an_interval_around_the_answer(multiplier, bins, epochs):
    allocation = pytest.importorskip("PLD_accounting")
    upper, lower = allocation.gaussian_allocation_epsilon_range(
        delta=1e-5, sigma=multiplier, num_steps=bins, num_epochs=epochs
    )
    ours = privacy_of(RandomAllocationDpEvent(multiplier, bins, epochs), Adjacency.ZERO_OUT).epsilon(1e-5)
    assert lower <= ours <= upper
