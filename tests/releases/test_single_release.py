"""One private statistic: what is chosen, what it costs, what it promises, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from dp_accounting.dp_event import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino as so
from sordino.errors import BudgetError, UsageError
from sordino.optimized_noise import AbsoluteCost, SquaredCost, isotropic, weighted_laplace


def drawn(count: int, dimension: int, **arguments) -> torch.Tensor:
    return torch.stack([so.release(torch.zeros(dimension), seed=seed, **arguments).value for seed in range(count)])


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("adjacency", list(so.Adjacency))
@pytest.mark.parametrize("epsilon", [0.1, 0.3, 1.0, 7.0])
def test_a_release_promises_what_was_asked_for_and_no_less(epsilon, adjacency, delta):
    released = so.release([1.0, 2.0, 3.0], 2.0, epsilon, delta=delta, adjacency=adjacency, seed=0)
    guarantee = released.guarantee
    assert guarantee.epsilon <= epsilon
    assert guarantee.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert (guarantee.adjacency, guarantee.delta) == (adjacency, delta)


@pytest.mark.parametrize("adjacency", list(so.Adjacency))
def test_sensitivity_is_between_neighbours_whatever_they_are(adjacency):
    one = so.release([0.0] * 5, 2.0, 1.0, adjacency=adjacency, seed=0)
    assert one.expected_cost == pytest.approx(so.release([0.0] * 5, 2.0, 1.0, seed=0).expected_cost)


@pytest.mark.parametrize("cost", [AbsoluteCost(), SquaredCost()])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_noise_costs_what_was_predicted(cost, delta):
    weights = torch.tensor([1.0, 5.0, 0.2, 0.2]).double()
    predicted = so.release(torch.zeros(4), 1.0, 0.5, delta=delta, weights=weights, cost=cost, seed=0).expected_cost
    draws = drawn(400, 4, sensitivity=1.0, epsilon=0.5, delta=delta, weights=weights, cost=cost)
    each = draws.abs().pow(cost.power) @ weights
    assert abs(float(each.mean()) - predicted) < 5 * float(each.std()) / math.sqrt(len(each))


@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30),
    epsilon=st.floats(0.05, 5.0),
    sensitivity=st.floats(1e-3, 1e3),
)
@settings(max_examples=25, deadline=None)
def test_nothing_else_would_have_cost_less(weights, epsilon, sensitivity):
    given_weights = torch.tensor(weights, dtype=torch.float64)
    released = so.release([0.0] * len(weights), sensitivity, epsilon, delta=1e-6, weights=weights, seed=0)
    std = sensitivity * so.accounting.smallest(GaussianDpEvent, so.Adjacency.ZERO_OUT, epsilon=epsilon, delta=1e-6)
    others = [fit(given_weights, epsilon / sensitivity) for fit in (isotropic, weighted_laplace)]
    costs = [other.expected_cost(given_weights, AbsoluteCost()) for other in others]
    assert released.expected_cost <= (1 + 1e-9) * min(*costs, math.sqrt(2 / math.pi) * std * sum(weights))


def test_few_coordinates_get_pure_noise_and_many_gaussian_if_there_is_a_delta():
    assert so.release([0.0], 1.0, 1.0, delta=1e-6, seed=0).noise == "weighted Laplace"
    assert so.release([0.0] * 5, 1.0, 1.0, delta=1e-6, seed=0).noise == "isotropic L2"
    assert so.release([0.0] * 1000, 1.0, 1.0, delta=1e-6, seed=0).noise == "Gaussian"
    assert so.release([0.0] * 1000, 1.0, 1.0, seed=0).noise == "isotropic L2"


def test_a_coordinate_that_matters_gets_less_noise():
    released = so.release([0.0, 0.0], 1.0, 1.0, weights=[100.0, 1.0], seed=0)
    assert released.expected_size[0] < released.expected_size[1] / 3


def test_the_choice_does_not_look_at_the_vector():
    small, large = (so.release([x, -x, x], 1.0, 1.0, delta=1e-6, seed=0) for x in (0.0, 1e6))
    assert (small.noise, small.expected_cost) == (large.noise, large.expected_cost)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_counts_as_zero(bad):
    released, zero = (so.release([x, 1.0], 1.0, 1.0, seed=3).value for x in (bad, 0.0))
    assert torch.equal(released, zero)


def test_no_number_is_so_large_that_noise_is_lost_in_its_rounding():
    released, larger = (so.release([x], 1.0, 1.0, seed=3).value for x in (1e30, 1e300))
    assert torch.equal(released, larger)
    assert float(released) < 1e12


def test_without_a_seed_no_two_releases_are_alike():
    one, other = (so.release([0.0] * 4, 1.0, 1.0).value for _ in range(2))
    assert not torch.equal(one, other)


def test_a_budget_is_charged_and_says_when_it_is_spent():
    budget = so.Budget((torch.zeros(9, 2), torch.zeros(9)), epsilon=1.0, delta=0.0)
    first = so.release([1.0, 2.0], 1.0, 0.5, budget=budget, seed=0)
    second = so.release([1.0, 2.0], 1.0, 0.5, budget=budget, seed=0)
    assert not torch.equal(first.value, second.value)
    assert budget.releases == ("vector", "vector")
    assert budget.guarantee(delta=0.0).epsilon == pytest.approx(1.0)
    with pytest.raises(BudgetError, match=r"the vector would bring epsilon to 1\.5"):
        so.release([1.0, 2.0], 1.0, 0.5, budget=budget)


def test_a_budget_without_a_delta_takes_no_gaussian_noise():
    budget = so.Budget((torch.zeros(9, 2), torch.zeros(9)), epsilon=1.0, delta=0.0)
    with pytest.raises(UsageError, match="delta"):
        budget.charge(GaussianDpEvent(10.0), so.Adjacency.ZERO_OUT, what="mean")
    assert budget.releases == ()


def test_numbers_of_all_kinds_are_taken():
    for vector in ([1, 2], np.array([1.0, 2.0]), torch.tensor([1, 2]), torch.tensor([1.0, 2.0]).half()):
        assert so.release(vector, 1.0, 1.0, seed=0).value.dtype == torch.float64


def test_weights_that_were_too_small_are_counted():
    assert so.release([0.0, 0.0, 0.0], 1.0, 1.0, weights=[1.0, 0.0, 0.0], seed=0).floored == 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"vector": []}, "vector must be one-dimensional, real and not empty"),
        ({"vector": [[1.0]]}, "vector must be one-dimensional, real and not empty"),
        ({"vector": torch.ones(2, dtype=torch.complex64)}, "vector must be one-dimensional, real and not empty"),
        ({"vector": ["one", "two"]}, "vector must be one-dimensional, real and not empty"),
        ({"sensitivity": 0.0}, "sensitivity must be"),
        ({"sensitivity": -1.0}, "sensitivity must be"),
        ({"sensitivity": math.nan}, "sensitivity must be"),
        ({"sensitivity": math.inf}, "sensitivity must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"epsilon": math.nan}, "epsilon must be"),
        ({"epsilon": 50.0}, "epsilon must be at most 20"),
        ({"delta": 1.0}, "delta must be"),
        ({"delta": -1e-9}, "delta must be"),
        ({"weights": [1.0]}, "weights must be 2, one per coordinate, got 1"),
        ({"weights": [0.0, 0.0]}, "weights must not all be 0"),
        ({"weights": [1.0, -1.0]}, "weights must be at least 0"),
        ({"weights": [1.0, math.nan]}, "weights must be finite"),
        ({"weights": [1.0, math.inf]}, "weights must be finite"),
        ({"cost": "absolute"}, "cost must be"),
        ({"adjacency": "replace-one"}, "adjacency must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_bad_input_gets_one_clear_line_and_no_budget_is_charged(changed, message):
    budget = so.Budget((torch.zeros(9, 2), torch.zeros(9)))
    arguments = {"vector": [1.0, 2.0], "sensitivity": 1.0, "epsilon": 1.0, "budget": budget} | changed
    with pytest.raises(UsageError, match=message) as raised:
        so.release(**arguments)
    assert "\n" not in str(raised.value)
    assert budget.releases == ()
