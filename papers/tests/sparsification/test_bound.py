"""The bounds have the units, limits and minimum that the theorems give them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import UsageError
from sordino_papers.sparsification.convergence import (
    ClippedDescent,
    Objective,
    Tradeoff,
    noisy_sgd_bound,
    supposed_kappa,
)
from sordino_papers.sparsification.convergence.bound import delta_sigma

OBJECTIVE = Objective(smoothness=2.0, loss_gap=3.0, dimension=500)
DESCENT = ClippedDescent(learning_rate=0.1, steps=100, batch_size=20, clip_norm=0.5, noise_multiplier=4.0)
POSITIVE = st.floats(min_value=0.01, max_value=100.0)


def in_other_units(loss: float, parameter: float) -> Tradeoff:
    """The same training, with the loss and the parameters measured in other units."""
    objective = Objective(
        OBJECTIVE.smoothness * loss / parameter**2, OBJECTIVE.loss_gap * loss, dimension=OBJECTIVE.dimension
    )
    rate, norm = DESCENT.learning_rate * parameter**2 / loss, DESCENT.clip_norm * loss / parameter
    return Tradeoff.of(objective, replace(DESCENT, learning_rate=rate, clip_norm=norm))


def test_the_terms_are_those_of_the_paper() -> None:
    assert delta_sigma(OBJECTIVE, DESCENT) == pytest.approx(0.5**2 * 4**2 * 500 * 2 / (2 * 20**2))
    tradeoff = Tradeoff.of(OBJECTIVE, DESCENT, asymmetry=0.05)
    assert tradeoff.noise == pytest.approx(0.1 * 5.0)
    assert tradeoff.delta_c == pytest.approx(3 / (0.1 * 100) + 0.1 * 2 * 0.5**2 / 2 - 0.05)


@given(POSITIVE, POSITIVE)
def test_other_units_scale_the_bound_and_leave_the_best_rate(loss: float, parameter: float) -> None:
    tradeoff, other = Tradeoff.of(OBJECTIVE, DESCENT), in_other_units(loss, parameter)
    squared_gradient = (loss / parameter) ** 2
    assert other.bound(0.3, 0.8) == pytest.approx(squared_gradient * tradeoff.bound(0.3, 0.8))
    assert other.best_rate() == pytest.approx(tradeoff.best_rate())


def test_without_the_learning_rate_the_best_rate_would_depend_on_units() -> None:
    def printed(loss: float) -> float:
        tradeoff, gamma = in_other_units(loss, 1.0), DESCENT.learning_rate / loss
        return 1 - tradeoff.delta_c / (tradeoff.noise / gamma)  # equation 116

    assert printed(1.0) == pytest.approx(0.935) and printed(0.2) == pytest.approx(0.675)


@given(POSITIVE, POSITIVE, st.sampled_from((0.3, 0.5, 0.8)))
def test_no_other_rate_has_a_smaller_bound(delta_c: float, noise: float, exponent: float) -> None:
    tradeoff = Tradeoff(delta_c, noise)
    best = tradeoff.best_rate(exponent)
    smallest = tradeoff.bound(best, (1 - best) ** exponent)
    for rate in (step / 200 for step in range(200)):
        assert smallest <= tradeoff.bound(rate, (1 - rate) ** exponent) * (1 + 1e-12)


def test_the_best_rate_is_that_of_the_supposed_kappa() -> None:
    tradeoff = Tradeoff(delta_c=1.0, noise=4.0)
    assert tradeoff.best_rate() == 0.75
    assert tradeoff.bound(0.75, supposed_kappa(0.75)) == pytest.approx(2 * (1.0 * 4.0) ** 0.5)


@given(st.floats(min_value=0.0, max_value=0.98), POSITIVE, POSITIVE)
def test_sparsifying_gains_nothing_where_noise_or_the_clip_is_missing(rate: float, delta_c: float, noise: float):
    lower = rate / 2
    noisy = [noisy_sgd_bound(OBJECTIVE, steps=9, batch_size=4, noise_std=noise, deviation=1, rate=r) for r in (0, rate)]
    assert noisy[0] <= noisy[1]
    without_noise = Tradeoff(delta_c, noise=0.0)
    assert without_noise.bound(lower, supposed_kappa(lower)) <= without_noise.bound(rate, supposed_kappa(rate))
    assert without_noise.best_rate() == 0.0
    # Nothing clipped: kappa is 1 - rate, and the noise on fewer coordinates is made up for by as much less progress.
    unclipped = Tradeoff(delta_c, noise)
    assert unclipped.bound(lower, 1 - lower) <= unclipped.bound(rate, 1 - rate) * (1 + 1e-12)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Tradeoff(1.0, 1.0).bound(0.5, kappa=0.4), "kappa must be at least 1 - rate = 0.5, got 0.4"),
        (lambda: Tradeoff(1.0, 1.0).bound(1.0, kappa=0.4), "rate must be in \\[0, 1\\), got 1.0"),
        (lambda: Tradeoff(1.0, 1.0).best_rate(exponent=0.0), "exponent must be in \\(0, 1\\], got 0.0"),
        (lambda: Tradeoff.of(OBJECTIVE, DESCENT, asymmetry=9.0), "delta_c must be a finite number above 0"),
        (lambda: Objective(1.0, -1.0, 3), "loss_gap must be in \\[0, inf\\], got -1.0"),
        (lambda: replace(DESCENT, steps=0), "steps must be a whole number"),
    ],
)
def test_numbers_that_no_training_has_are_refused(make, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
