import math

import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.accounting import Adjacency, GaussianCurve, RandomAllocationDpEvent, all_answers, privacy_of
from sordino.errors import UsageError

rates = st.floats(1e-4, 0.9)
multipliers = st.floats(0.4, 20.0)
steps = st.integers(1, 3000)
deltas = st.sampled_from([1e-3, 1e-6, 1e-12, 1e-30])
quickly = settings(max_examples=12)


def poisson(rate, multiplier, count):
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), count)


def epsilon(event, delta=1e-6, adjacency=Adjacency.ZERO_OUT):
    return privacy_of(event, adjacency).epsilon(delta)


@quickly
@given(rates, multipliers, steps, deltas)
def test_epsilon_falls_with_noise_and_delta_and_grows_with_rate_and_steps(rate, multiplier, count, delta):
    here = epsilon(poisson(rate, multiplier, count), delta)
    slack = 1 + 1e-3
    assert 0 <= here < math.inf
    assert epsilon(poisson(rate, multiplier * 1.1, count), delta) <= here * slack
    assert epsilon(poisson(rate * 0.9, multiplier, count), delta) <= here * slack
    assert epsilon(poisson(rate, multiplier, count + 1 + count // 10), delta) * slack >= here
    assert epsilon(poisson(rate, multiplier, count), delta / 10) * slack >= here


@quickly
@given(rates, multipliers, steps, deltas)
def test_pld_is_the_tighter_opinion(rate, multiplier, count, delta):
    for adjacency in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE):
        said = {
            each.accountant: each.epsilon for each in all_answers(poisson(rate, multiplier, count), adjacency, delta)
        }
        pld = said.pop("pld")
        assert all(pld <= other * (1 + 1e-3) for other in said.values())


@quickly
@given(rates, multipliers, steps, st.integers(1, 3000))
def test_parts_compose_to_the_whole(rate, multiplier, first, second):
    parts = ComposedDpEvent([poisson(rate, multiplier, first), poisson(rate, multiplier, second)])
    assert epsilon(parts) == epsilon(poisson(rate, multiplier, first + second))


@quickly
@given(multipliers, st.integers(1, 1000), deltas)
def test_sampling_nearly_everybody_costs_nearly_what_the_gaussian_costs(multiplier, count, delta):
    exact = GaussianCurve(math.sqrt(count) / multiplier).epsilon(delta)
    assert epsilon(poisson(1.0, multiplier, count), delta) == pytest.approx(exact)
    assert epsilon(poisson(1 - 1e-9, multiplier, count), delta) == pytest.approx(exact, rel=2e-3)


@quickly
@given(rates, multipliers, steps)
def test_replacing_a_unit_costs_at_least_what_removing_it_costs(rate, multiplier, count):
    event = poisson(rate, multiplier, count)
    assert epsilon(event, adjacency=Adjacency.REPLACE_ONE) >= epsilon(event) * (1 - 1e-3)


@pytest.mark.parametrize("delta", [1e-12, 1e-18, 1e-30, 1e-100, 1e-300])
def test_epsilon_does_not_jump_at_a_tiny_delta(delta):
    event = poisson(0.01, 1.0, 1000)
    here, beside = epsilon(event, delta), epsilon(event, min(1e-3, delta * 1.1))
    assert beside < here < beside * 1.02


def test_the_same_question_gets_the_same_answer():
    first, second = (privacy_of(poisson(0.01, 1.0, 1000), Adjacency.ZERO_OUT) for _ in range(2))
    assert first.answer(1e-5) == first.answer(1e-5) == second.answer(1e-5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("event", [NoOpDpEvent(), ComposedDpEvent([]), poisson(0.0, 1.0, 100), poisson(0.5, 1.0, 0)])
def test_nothing_released_costs_nothing(event, adjacency):
    assert epsilon(event, adjacency=adjacency) == 0
    assert privacy_of(event, adjacency).delta(0.0) == 0


@pytest.mark.parametrize(
    "event",
    [
        NonPrivateDpEvent(),
        GaussianDpEvent(0.0),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(0.0)),
        LaplaceDpEvent(0.0),
        RandomAllocationDpEvent(0.0, 10, 1),
        ComposedDpEvent([GaussianDpEvent(1.0), NonPrivateDpEvent()]),
    ],
)
def test_a_release_without_noise_has_no_finite_epsilon(event):
    assert epsilon(event) == math.inf
    assert privacy_of(event, Adjacency.ZERO_OUT).delta(100.0) == 1
    assert [each.epsilon for each in all_answers(event, Adjacency.ZERO_OUT, 1e-5)] == [math.inf]


@pytest.mark.parametrize("delta", [0.0, -1e-5, 1.0, 2.0, 1e-301, float("nan"), float("inf"), "1e-5", None, True])
def test_a_delta_that_is_no_probability_is_refused(delta):
    with pytest.raises(UsageError, match="delta"):
        epsilon(GaussianDpEvent(1.0), delta)
    with pytest.raises(UsageError, match="delta"):
        all_answers(GaussianDpEvent(1.0), Adjacency.ZERO_OUT, delta)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), None])
def test_delta_is_answered_for_a_finite_epsilon_only(value):
    with pytest.raises(UsageError, match="epsilon"):
        privacy_of(GaussianDpEvent(1.0), Adjacency.ZERO_OUT).delta(value)


def test_mixed_releases_are_composed_by_every_accountant_that_can():
    mixed = ComposedDpEvent([poisson(0.01, 1.0, 100), RandomAllocationDpEvent(2.0, 60, 5), LaplaceDpEvent(3.0)])
    said = {each.accountant: each.epsilon for each in all_answers(mixed, Adjacency.ZERO_OUT, 1e-5)}
    assert set(said) == {"pld", "random-allocation", "composition-without-amplification"}
    alone = max(epsilon(part, 1e-5) for part in mixed.events)
    assert all(value > alone for value in said.values())


def test_laplace_noise_never_costs_more_than_its_pure_guarantee():
    assert epsilon(LaplaceDpEvent(2.0), 1e-12) <= 0.5 * (1 + 1e-3)
    assert epsilon(LaplaceDpEvent(2.0), 1e-12, Adjacency.REPLACE_ONE) == pytest.approx(1.0, rel=1e-3)
    assert epsilon(SelfComposedDpEvent(LaplaceDpEvent(2.0), 10), 1e-12) <= 5.0 * (1 + 1e-3)
