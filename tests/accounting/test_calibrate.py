import time

import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting import Adjacency, RandomAllocationDpEvent, privacy_of, smallest
from sordino.errors import UsageError


def poisson(rate, count):
    return lambda multiplier: SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), count)


@settings(max_examples=8)
@given(
    st.floats(1e-3, 1.0),
    st.integers(1, 3000),
    st.floats(0.05, 12.0),
    st.sampled_from([1e-4, 1e-6, 1e-12]),
    st.sampled_from(list(Adjacency)),
)
def test_the_noise_found_meets_the_target_and_a_little_less_does_not(rate, count, target, delta, adjacency):
    make_event = poisson(rate, count)
    found = smallest(make_event, adjacency, epsilon=target, delta=delta)
    assert privacy_of(make_event(found), adjacency).epsilon(delta) <= target
    if found > 1e-2:
        assert privacy_of(make_event(found * (1 - 1e-3)), adjacency).epsilon(delta) > target * (1 - 1e-6)


def test_a_usual_setting_takes_a_second_or_two():
    start = time.perf_counter()
    found = smallest(poisson(1000 / 60_000, 2400), Adjacency.ZERO_OUT, epsilon=3.0, delta=1e-5)
    assert time.perf_counter() - start < 5
    assert found == pytest.approx(1.3527, rel=1e-3)


def test_it_solves_for_one_unknown_beside_other_releases():
    def make_event(multiplier):
        return ComposedDpEvent([poisson(0.01, 500)(multiplier), GaussianDpEvent(5.0)])

    found = smallest(make_event, Adjacency.ZERO_OUT, epsilon=2.0, delta=1e-5)
    assert privacy_of(make_event(found), Adjacency.ZERO_OUT).epsilon(1e-5) <= 2.0
    assert found > smallest(poisson(0.01, 500), Adjacency.ZERO_OUT, epsilon=2.0, delta=1e-5)


def test_random_allocation_can_be_calibrated():
    found = smallest(lambda s: RandomAllocationDpEvent(s, 20, 3), Adjacency.ZERO_OUT, epsilon=2.0, delta=1e-5)
    assert privacy_of(RandomAllocationDpEvent(found, 20, 3), Adjacency.ZERO_OUT).epsilon(1e-5) <= 2.0


def test_a_target_that_any_noise_meets_gives_the_smallest_allowed():
    assert smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=1e5, delta=1e-5, low=0.05) == 0.05


def test_a_target_out_of_reach_names_the_noise_it_would_need():
    with pytest.raises(UsageError, match=r"needs a noise multiplier of \d.*e\+0?7"):
        smallest(poisson(0.5, 10**6), Adjacency.ZERO_OUT, epsilon=1e-4, delta=1e-9)


def test_a_target_that_something_else_has_spent_already_is_refused():
    def make_event(multiplier):
        return ComposedDpEvent([GaussianDpEvent(multiplier), GaussianDpEvent(1.0)])

    with pytest.raises(UsageError, match="other releases exceed it"):
        smallest(make_event, Adjacency.ZERO_OUT, epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf"), "1,0", None])
def test_an_epsilon_that_is_no_target_is_refused(epsilon):
    with pytest.raises(UsageError, match="epsilon"):
        smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("delta", [0, -1.0, 1, float("nan")])
def test_a_delta_that_is_no_probability_is_refused(delta):
    with pytest.raises(UsageError, match="delta"):
        smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=1.0, delta=delta)
