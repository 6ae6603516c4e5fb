"""Pure differential privacy: sums of epsilons, randomized response, and guarantees with delta 0."""

import json
import math

import attr
import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st
from pure_steps import REPLACE_ONE, ZERO_OUT, cost, deltas, epsilons, quickly, rates, sampled, steps

from sordino.accounting import Adjacency, Guarantee, PureDpEvent, all_answers, privacy_of, smallest
from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.group import by_hybrids, epsilon_for_group
from sordino.accounting.pure import is_pure
from sordino.accounting.rdp import RdpCurve
from sordino.errors import UnsupportedEvent, UsageError
from sordino.kernel.calibration import check_target


@quickly
@given(epsilons, rates, steps, deltas, st.sampled_from([ZERO_OUT, REPLACE_ONE]))
def test_epsilon_grows_with_rate_steps_and_epsilon_of_a_step(epsilon, rate, count, delta, adjacency):
    here = cost(sampled(epsilon, rate, count), delta, adjacency) * (1 - 1e-6)
    assert cost(sampled(epsilon, rate * 1.01, count), delta, adjacency) >= here
    assert cost(sampled(epsilon, rate, count + 1), delta, adjacency) >= here
    assert cost(sampled(epsilon * 1.01, rate, count), delta, adjacency) >= here
    assert cost(sampled(epsilon, rate, count), delta / 2, adjacency) >= here


@quickly
@given(epsilons, rates, steps, deltas, st.sampled_from([ZERO_OUT, REPLACE_ONE]))
def test_privacy_losses_are_tighter_than_both_theorems_about_sums(epsilon, rate, count, delta, adjacency):
    said = {each.accountant: each.epsilon for each in all_answers(sampled(epsilon, rate, count), adjacency, delta)}
    assert set(said) == {
        "pld",
        "rdp",
        "pure-composition",
        "advanced-composition",
        "composition-without-amplification",
    }
    assert all(said["pld"] <= other * (1 + 1e-6) for other in said.values())


def test_advanced_composition_is_the_published_formula():
    said = {each.accountant: each.epsilon for each in all_answers(sampled(0.1, 1.0, 100), ZERO_OUT, 1e-5)}
    formula = 0.1 * math.sqrt(200 * math.log(1e5)) + 100 * 0.1 * math.expm1(0.1) / (math.exp(0.1) + 1)
    assert said["advanced-composition"] == pytest.approx(formula, rel=1e-9)


def test_pure_noise_has_a_pure_guarantee():
    guarantee = Guarantee.of(PureDpEvent(1.0), ZERO_OUT, delta=0.0)
    assert (guarantee.epsilon, guarantee.accountant) == (1.0, "pure-composition")
    assert "epsilon = 1 (pure: delta = 0)" in str(guarantee)
    assert "apart from a probability" not in str(guarantee)
    assert guarantee.for_group(4) == 4.0
    assert guarantee.best_true_positive_rate(0.01) == pytest.approx(0.01 * math.e, abs=2e-6)
    assert json.loads(json.dumps(guarantee.as_dict(), allow_nan=False))["delta"] == 0


@pytest.mark.parametrize(
    ("event", "adjacency", "total"),
    [
        (PureDpEvent(2.0), REPLACE_ONE, 1.0),
        (SelfComposedDpEvent(PureDpEvent(10.0), 7), ZERO_OUT, 0.7),
        (LaplaceDpEvent(4.0), ZERO_OUT, 0.25),
        (ComposedDpEvent([PureDpEvent(2.0), LaplaceDpEvent(4.0)]), ZERO_OUT, 0.75),
        (sampled(1.0, 0.1, 5), Adjacency.ADD_OR_REMOVE, 5 * math.log(1 + 0.1 * (math.e - 1))),
        (SampledWithoutReplacementDpEvent(100, 100, PureDpEvent(2.0)), REPLACE_ONE, 1.0),
        (NoOpDpEvent(), ZERO_OUT, 0.0),
    ],
)
def test_pure_epsilons_add_up(event, adjacency, total):
    assert is_pure(event)
    assert Guarantee.of(event, adjacency, delta=0.0).epsilon == pytest.approx(total)
    assert [each.accountant for each in all_answers(event, adjacency, 0.0)] == ["pure-composition"]
    assert privacy_of(event, adjacency).delta(total * (1 + 1e-9)) == 0


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(1.0),
        PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)),
        ComposedDpEvent([PureDpEvent(1.0), GaussianDpEvent(100.0)]),
        RepeatAndSelectDpEvent(PureDpEvent(1.0), 4.0, 0.0),
    ],
)
def test_a_delta_of_zero_is_for_what_is_pure_as_a_whole(event):
    assert not is_pure(event)
    for question in (
        lambda: Guarantee.of(event, ZERO_OUT, delta=0.0),
        lambda: all_answers(event, ZERO_OUT, 0.0),
        lambda: epsilon_for_group(event, ZERO_OUT, 4, 0.0),
        lambda: smallest(lambda m: ComposedDpEvent([event, PureDpEvent(m)]), ZERO_OUT, epsilon=1.0, delta=0.0),
    ):
        with pytest.raises(UsageError, match=r"^delta must be in .* unless all that is released is pure, got 0\.0\.$"):
            question()


def test_a_target_may_have_a_delta_of_zero_for_a_pure_release_only():
    check_target(1.0, 0.0, release=PureDpEvent(1.0))
    for release in (GaussianDpEvent(1.0), None):
        with pytest.raises(UsageError, match="unless all that is released is pure"):
            check_target(1.0, 0.0, release=release)


@pytest.mark.parametrize("delta", [-1e-5, 1.0, 1e-301, float("nan"), False, "0", None])
def test_other_deltas_stay_refused(delta):
    with pytest.raises(UsageError, match="delta must be in"):
        cost(PureDpEvent(1.0), delta)


def test_a_pure_target_is_met_by_its_inverse():
    found = smallest(PureDpEvent, ZERO_OUT, epsilon=0.5, delta=0.0)
    assert 2.0 <= found <= 2.0 * (1 + 3e-5)
    assert 1 / found <= 0.5


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_noise_found_for_sampled_steps_meets_the_target_and_a_little_less_does_not(adjacency, delta):
    def event(multiplier):
        release = attr.evolve(PureDpEvent(1.0), noise_multiplier=multiplier)
        return SelfComposedDpEvent(PoissonSampledDpEvent(0.05, release), 100)

    found = smallest(event, adjacency, epsilon=2.0, delta=delta)
    assert cost(event(found), delta, adjacency) <= 2.0 < cost(event(found * (1 - 1e-4)), delta, adjacency)


@quickly
@given(epsilons, st.integers(2, 6), st.integers(1, 60), st.sampled_from([1e-3, 1e-8]))
def test_a_group_pays_at_most_for_each_member_and_no_more_than_the_generic_bound(epsilon, size, count, delta):
    event = sampled(epsilon, 1.0, count)
    together = epsilon_for_group(event, ZERO_OUT, size, delta)
    assert cost(event, delta) <= together <= size * epsilon * count * (1 + 1e-9)
    assert together <= by_hybrids(privacy_of(event, ZERO_OUT), size, delta) * (1 + 2e-3)


def test_a_group_under_sampling_has_a_bound():
    event = sampled(0.5, 0.01, 100)
    assert cost(event, 1e-5) < epsilon_for_group(event, ZERO_OUT, 4, 1e-5) <= 4 * cost(event, 0.0)


def test_the_best_attack_on_randomized_response_is_to_believe_it():
    """At a false positive rate of 1 / (1 + e) its true positive rate is e / (1 + e)."""
    guarantee = Guarantee.of(PureDpEvent(1.0), ZERO_OUT, delta=0.0)
    lie = 1 / (1 + math.e)
    assert guarantee.best_true_positive_rate(lie) == pytest.approx(1 - lie, abs=1e-4)


def test_the_best_of_several_pure_trials_costs_more_than_one():
    one = RdpCurve.of([(AccountantView(PureDpEvent(4.0)), 1)]).epsilon(1e-5)
    best = cost(RepeatAndSelectDpEvent(PureDpEvent(4.0), 8.0, 0.0), 1e-5)
    assert one < best < 1.0


@pytest.mark.parametrize("event", [PureDpEvent(0.0), PoissonSampledDpEvent(0.1, PureDpEvent(0.0)), PureDpEvent(1e-200)])
@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
def test_without_noise_there_is_no_finite_epsilon(event, adjacency):
    assert cost(event, 1e-5, adjacency) == math.inf


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
@pytest.mark.parametrize("multiplier", [1e-90, 1e-3, 1e6])
def test_any_amount_of_noise_gets_an_answer(multiplier, adjacency):
    for event in (PureDpEvent(multiplier), PoissonSampledDpEvent(1e-6, PureDpEvent(multiplier))):
        assert 0 <= cost(event, 1e-5, adjacency) <= 2 / multiplier


@pytest.mark.parametrize("multiplier", [-1.0, float("nan"), float("inf"), "1", None])
@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE_ONE])
def test_a_multiplier_that_is_no_number_is_refused(multiplier, adjacency):
    for event in (PureDpEvent(multiplier), PoissonSampledDpEvent(0.1, PureDpEvent(multiplier))):
        with pytest.raises(UsageError, match="noise_multiplier"):
            privacy_of(event, adjacency)


def test_batches_of_a_fixed_size_are_covered_under_replace_one_only():
    with pytest.raises(UnsupportedEvent, match="replace-one only"):
        privacy_of(SampledWithoutReplacementDpEvent(100, 10, PureDpEvent(1.0)), ZERO_OUT)
