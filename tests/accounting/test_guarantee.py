import json
import math
from decimal import Decimal

import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from sordino.accounting import Adjacency, GaussianCurve, Guarantee, RandomAllocationDpEvent, Unit, View
from sordino.accounting.accountant_views import AccountantView
from sordino.accounting.curves import best_true_positive_rate
from sordino.accounting.group import by_hybrids, epsilon_for_group
from sordino.accounting.guarantee import rounded_up
from sordino.accounting.pld import PldCurve
from sordino.errors import UsageError

POISSON = SelfComposedDpEvent(PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(1.1)), 14_062)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_statement_carries_all_that_an_epsilon_means_nothing_without(adjacency):
    guarantee = Guarantee.of(
        POISSON, adjacency, delta=1e-5, unit=Unit.USER, view=View.FINAL_MODEL, assumptions=("labels are public",)
    )
    statement = str(guarantee)
    for part in (rounded_up(guarantee.epsilon), "1e-05", "user", adjacency, "final model only", "labels are public"):
        assert part in statement
    assert f"Accountant: {guarantee.accountant}." in statement
    assert "group of four" in statement and "membership attack" in statement
    assert "example" not in statement and "\n" not in statement


def test_without_noise_the_statement_says_so_and_claims_nothing():
    guarantee = Guarantee.of(NonPrivateDpEvent(), Adjacency.ZERO_OUT, delta=1e-5)
    assert guarantee.epsilon == math.inf
    assert str(guarantee).startswith("There is no privacy guarantee")
    assert guarantee.for_group(4) == math.inf
    assert guarantee.best_true_positive_rate() == 1
    assert guarantee.as_dict()["epsilon"] is None
    json.dumps(guarantee.as_dict(), allow_nan=False)


def test_it_can_be_written_as_json():
    facts = json.loads(json.dumps(Guarantee.of(POISSON, Adjacency.ZERO_OUT, delta=1e-5).as_dict(), allow_nan=False))
    assert facts["epsilon"] == pytest.approx(2.3817, rel=1e-3)
    assert facts["adjacency"] == "zero-out"
    assert facts["unit"] == "example"
    assert facts["view"] == "every-step"
    assert facts["accountant"] == "pld"
    assert facts["group_of_four_epsilon"] > facts["epsilon"]
    assert 0.01 < facts["best_true_positive_rate_at_1_percent"] < 1
    assert facts["versions"]["dp-accounting"].startswith("0.6")


@given(st.floats(1e-9, 1e9), st.integers(1, 8))
def test_a_printed_number_is_never_below_the_proved_one(value, digits):
    assert Decimal(value) <= Decimal(rounded_up(value, digits)) <= Decimal(value) * (1 + Decimal(10) ** (1 - digits))


def test_a_group_of_gaussians_divides_the_noise_by_its_size():
    guarantee = Guarantee.of(SelfComposedDpEvent(GaussianDpEvent(8.0), 4), Adjacency.ZERO_OUT, delta=1e-5)
    assert guarantee.for_group(1) == pytest.approx(guarantee.epsilon)
    assert guarantee.for_group(4) == pytest.approx(GaussianCurve(1.0).epsilon(1e-5), rel=1e-6)


def test_a_group_under_poisson_sampling_pays_less_than_the_generic_conversion():
    tight = epsilon_for_group(POISSON, Adjacency.ZERO_OUT, 4, 1e-5)
    generic = by_hybrids(PldCurve.of([(AccountantView(POISSON.event), POISSON.count)]), 4, 1e-5)
    single = epsilon_for_group(POISSON, Adjacency.ZERO_OUT, 1, 1e-5)
    assert single < tight < generic < math.inf


def test_the_generic_conversion_lies_above_the_exact_group_of_gaussians():
    for size in (2, 4, 10):
        assert by_hybrids(GaussianCurve(0.3), size, 1e-5) >= GaussianCurve(0.3 * size).epsilon(1e-5)


@pytest.mark.parametrize("event", [RandomAllocationDpEvent(4.0, 20, 2), LaplaceDpEvent(10.0)])
def test_a_group_of_anything_else_has_the_generic_bound(event):
    assert epsilon_for_group(event, Adjacency.ZERO_OUT, 1, 1e-5) < epsilon_for_group(event, Adjacency.ZERO_OUT, 4, 1e-5)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, 10**6])
def test_a_group_is_a_whole_number_of_units(size):
    with pytest.raises(UsageError, match="size"):
        Guarantee.of(POISSON, Adjacency.ZERO_OUT, delta=1e-5).for_group(size)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("false_positive_rate", [0.001, 0.01, 0.3])
def test_the_best_attack_on_a_gaussian_is_the_likelihood_ratio_test(mu, false_positive_rate):
    exact = float(ndtr(ndtri(false_positive_rate) + mu))
    bound = best_true_positive_rate(GaussianCurve(mu), false_positive_rate)
    assert exact <= bound <= exact * 1.01


def test_nothing_released_lets_an_attack_only_guess():
    assert best_true_positive_rate(GaussianCurve(0.0), 0.01) == 0.01


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_false_positive_rate_is_a_probability(rate):
    with pytest.raises(UsageError, match="false_positive_rate"):
        Guarantee.of(POISSON, Adjacency.ZERO_OUT, delta=1e-5).best_true_positive_rate(rate)


def test_unit_and_view_are_not_strings():
    with pytest.raises(UsageError, match="unit"):
        Guarantee.of(POISSON, Adjacency.ZERO_OUT, delta=1e-5, unit="example")
    with pytest.raises(UsageError, match="view"):
        Guarantee.of(POISSON, Adjacency.ZERO_OUT, delta=1e-5, view="every-step")
