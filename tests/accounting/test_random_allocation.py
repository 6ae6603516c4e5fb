import math

import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from oracles import allocation_hockey_stick, moment_by_partitions

from sordino.accounting import Adjacency, GaussianCurve, RandomAllocationDpEvent, opinions, privacy_of
from sordino.accounting.decomposition import PoissonDecomposition
from sordino.accounting.random_allocation import renyi_of_adding, renyi_of_removing
from sordino.accounting.rdp import ORDERS as RDP_ORDERS
from sordino.accounting.rdp import RdpCurve
from sordino.accounting.visible import Sight

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


@pytest.mark.parametrize(("bins", "multiplier"), [(2, 0.6), (2, 2.0), (3, 0.7), (3, 1.5)])
@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6])
def test_epsilon_of_one_epoch_is_never_below_the_true_one(bins, multiplier, delta):
    for answer in opinions(RandomAllocationDpEvent(multiplier, bins, 1), Adjacency.ZERO_OUT, delta):
        for removing in (True, False):
            true_delta = allocation_hockey_stick(multiplier, bins, answer.epsilon, removing=removing)
            assert true_delta <= delta * (1 + 1e-3), answer


@pytest.mark.parametrize(("bins", "multiplier"), [(2, 0.6), (3, 1.5)])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.0])
def test_the_decomposition_holds_in_each_direction_by_itself(bins, multiplier, epsilon):
    bound = PoissonDecomposition(multiplier, bins)
    assert allocation_hockey_stick(multiplier, bins, epsilon, removing=True) <= bound.delta(epsilon) * (1 + 1e-3)
    assert allocation_hockey_stick(multiplier, bins, epsilon, removing=False) <= bound.delta(epsilon) * (1 + 1e-3)


@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_epsilon_and_delta_of_the_decomposition_are_inverse(delta):
    bound = PoissonDecomposition(1.0, 20)
    assert bound.delta(bound.epsilon(delta)) == pytest.approx(delta, rel=2e-2)


def test_more_epochs_cost_more():
    events = [RandomAllocationDpEvent(1.4518, 50, epochs) for epochs in (1, 4, 40)]
    epsilons = [privacy_of(event, Adjacency.ZERO_OUT).epsilon(1e-5) for event in events]
    assert epsilons == sorted(epsilons)


def test_the_shift_of_jensens_bound_is_paid_in_every_epoch():
    """Above the orders computed exactly there is Jensen's bound alone: (order / bins + 1 - 1 / bins) / (2 s^2)."""
    sight = Sight(RandomAllocationDpEvent(1.0, 50, 1))
    ten_epochs = RdpCurve.of([(sight, 10)]).adding[-1]
    assert ten_epochs == pytest.approx(10 * (RDP_ORDERS[-1] / 50 + 1 - 1 / 50) / 2)


@pytest.mark.parametrize(
    ("multiplier", "bins", "epochs", "lower", "upper"),
    # Intervals of PLD_accounting 2.0 at delta = 1e-5, 100 to 200 seconds each.
    [(1.4518, 50, 40, 2.859, 2.950), (3.4472, 50, 40, 0.966, 1.011), (2.0, 60, 40, 1.677, 1.742)],
)
def test_closed_forms_lie_above_the_certified_interval_and_within_ten_percent(multiplier, bins, epochs, lower, upper):
    answer = privacy_of(RandomAllocationDpEvent(multiplier, bins, epochs), Adjacency.ADD_OR_REMOVE).answer(1e-5)
    assert answer.accountant == "random-allocation"
    assert lower <= answer.epsilon <= 1.1 * upper


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
def test_the_numerical_bound_confirms_the_closed_forms(multiplier, bins, epochs):
    allocation = pytest.importorskip("PLD_accounting")
    upper, lower = allocation.gaussian_allocation_epsilon_range(
        delta=1e-5, sigma=multiplier, num_steps=bins, num_epochs=epochs
    )
    ours = privacy_of(RandomAllocationDpEvent(multiplier, bins, epochs), Adjacency.ZERO_OUT).epsilon(1e-5)
    assert lower <= ours <= 1.2 * upper
