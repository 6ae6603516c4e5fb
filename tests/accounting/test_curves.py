import math

import mpmath as mp
import pytest

from sordino.accounting import GaussianCurve


def exact_log_delta(mu, epsilon):
    with mp.workdps(60):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        return mp.log(mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("mu", [1e-9, 1e-6, 9e-6, 1.1e-5, 1e-3, 0.3, 1.0, 7.0, 40.0, 1e3])
@pytest.mark.parametrize("delta", [1e-300, 1e-30, 1e-10, 1e-3, 0.3])
def test_epsilon_of_a_gaussian_is_right_and_on_the_safe_side(mu, delta):
    epsilon = GaussianCurve(mu).epsilon(delta)
    if epsilon == 0:
        assert exact_log_delta(mu, 0) <= math.log(delta)
        return
    assert exact_log_delta(mu, epsilon * (1 + 1e-7)) <= math.log(delta)
    assert exact_log_delta(mu, epsilon * (1 - 1e-6)) > math.log(delta)


@pytest.mark.parametrize("mu", [1e-7, 1e-3, 1.0, 12.0])
@pytest.mark.parametrize("deviations", [0.0, 1.0, 5.0, 30.0])
def test_delta_of_a_gaussian_is_right(mu, deviations):
    epsilon = mu * deviations
    assert GaussianCurve(mu).delta(epsilon) == pytest.approx(float(mp.exp(exact_log_delta(mu, epsilon))), rel=1e-6)


def test_nothing_released_costs_nothing_and_no_noise_costs_everything():
    assert GaussianCurve(0.0).epsilon(1e-5) == 0
    assert GaussianCurve(0.0).delta(0.0) == 0
    assert GaussianCurve(math.inf).epsilon(1e-5) == math.inf
    assert GaussianCurve(math.inf).delta(100.0) == 1
