import logging
import math

import numpy as np
import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from oracles import poisson_renyi

from sordino.accounting.accountant_views import REPLACE_ONE, AccountantView
from sordino.accounting.rdp import ORDERS, RdpCurve, renyi
from sordino.errors import UnsupportedEvent


@pytest.mark.parametrize(("rate", "multiplier"), [(0.01, 1.0), (0.3, 0.5), (1e-4, 10.0), (0.9, 2.0)])
@pytest.mark.parametrize("order", [1.1, 1.7, 2.0, 4.5, 11.0, 32.0])
def test_divergences_of_poisson_sampling_equal_a_quadrature_in_high_precision(rate, multiplier, order):
    there, back = renyi(AccountantView(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier))))
    exact = poisson_renyi(rate, multiplier, order)
    ours = float(there[np.argmin(abs(ORDERS - order))])
    assert exact <= ours <= exact * (1 + 1e-6)
    assert np.array_equal(there, back)


def test_a_tiny_divergence_keeps_its_digits():
    """q^2 / (2 multiplier^2) times the order is 1e-14: a sum that starts from 1 would have lost it."""
    there, _ = renyi(AccountantView(PoissonSampledDpEvent(1e-5, GaussianDpEvent(100.0))))
    exact = poisson_renyi(1e-5, 100.0, 8.0)
    assert exact <= float(there[np.argmin(abs(ORDERS - 8.0))]) <= exact * (1 + 1e-6)
    assert (
        RdpCurve.of([(AccountantView(PoissonSampledDpEvent(1e-5, GaussianDpEvent(100.0))), 10**6)]).epsilon(1e-15) > 0
    )


def test_large_orders_agree_with_dp_accounting():
    logging.getLogger("absl").setLevel(logging.ERROR)
    theirs = RdpAccountant([64.0, 128.0, 1024.0])
    theirs.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0)))
    there, _ = renyi(AccountantView(PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0))))
    for order, expected in zip(theirs.orders, theirs.rdp, strict=True):
        assert there[np.argmin(abs(ORDERS - order))] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "sight",
    [
        AccountantView(LaplaceDpEvent(2.0)),
        AccountantView(SampledWithoutReplacementDpEvent(1000, 10, GaussianDpEvent(2.0)), REPLACE_ONE),
    ],
)
def test_the_others_come_from_dp_accounting(sight):
    theirs = RdpAccountant([2.0, 16.0], sight.relation)
    theirs.compose(sight.event)
    there, _ = renyi(sight)
    assert there[np.argmin(abs(ORDERS - 2.0))] == pytest.approx(theirs.rdp[0])
    assert there[np.argmin(abs(ORDERS - 16.0))] == pytest.approx(theirs.rdp[1])


def test_repeating_adds_up():
    one = AccountantView(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)))
    assert np.allclose(RdpCurve.of([(one, 12)]).removing, 12 * RdpCurve.of([(one, 1)]).removing, rtol=1e-12)


@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.3])
def test_delta_is_the_inverse_of_epsilon(delta):
    curve = RdpCurve.of([(AccountantView(GaussianDpEvent(1.0)), 3)])
    assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-6)


def test_nothing_known_means_no_bound():
    nothing = np.full_like(ORDERS, math.inf)
    assert RdpCurve(nothing, nothing).epsilon(1e-5) == math.inf
    assert RdpCurve(nothing, nothing).delta(1.0) == 1


def test_what_it_does_not_cover_raises():
    with pytest.raises(UnsupportedEvent, match="LaplaceDpEvent"):
        renyi(AccountantView(PoissonSampledDpEvent(0.1, LaplaceDpEvent(1.0))))
