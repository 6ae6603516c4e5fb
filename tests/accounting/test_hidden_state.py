"""The taut string against closed forms, an independent quadratic program, and what an attacker measures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from sordino.accounting import Adjacency, Guarantee, View
from sordino.accounting.events import HiddenStateDpEvent
from sordino.accounting.hidden_state import Steps, mu_of_cycle, mu_of_unit
from sordino.errors import UnsupportedEvent, UsageError


def cycle(contraction: float, batches: int, epochs: int, scale: float = 1.0, **options) -> float:
    steps = Steps.constant(batches * epochs, contraction=contraction, noise_multiplier=1 / scale)
    return mu_of_cycle(steps, batches=batches, epochs=epochs, **options)


# --- closed forms: Bok, Su and Altschuler (2024), as in their published code ---


def strongly_convex(c: float, batches: int, epochs: int) -> float:
    last = c ** (batches * (epochs - 1))
    gain = c ** (2 * batches - 2) * (1 - c**2) / (1 - c**batches) ** 2
    return math.sqrt(1 + gain * (1 - last) / (1 + last))


@pytest.mark.parametrize(
    ("c", "batches", "epochs", "mu"),
    [
        (0.9, 4, 3, 1.157551979593624),
        (0.97, 5, 4, 1.233368172527806),
        (0.8, 3, 5, 1.240789998175417),
        (0.9, 1, 6, 2.411064383168147),
        (0.97, 1, 12, 3.445153214560934),
    ],
)
def test_golden_values(c: float, batches: int, epochs: int, mu: float) -> None:
    assert cycle(c, batches, epochs) == pytest.approx(mu, abs=1e-12)


@given(st.floats(0.5, 0.99999), st.integers(2, 30), st.integers(1, 30))
def test_a_strongly_convex_cycle_has_its_closed_form(c: float, batches: int, epochs: int) -> None:
    assert cycle(c, batches, epochs) == pytest.approx(strongly_convex(c, batches, epochs), rel=1e-9)


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_merely_convex_cycle_has_its_closed_form(batches: int, epochs: int) -> None:
    assert cycle(1.0, batches, epochs) == pytest.approx(math.sqrt(1 + (epochs - 1) / batches), rel=1e-9)


@given(st.floats(0.5, 0.9999), st.integers(1, 200))
def test_the_full_batch_has_its_closed_form(c: float, steps: int) -> None:
    closed = math.sqrt((1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c))
    assert cycle(c, 1, steps) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    ("eta_lambda", "scale", "mu"),
    [
        (5.4e-5, 2 / 15, 0.3487),
        (1e-4, 2 / 15, 0.3155),
        (2e-4, 2 / 15, 0.2565),
        (0.0, 2 / 15, 0.3688),
        (5.4e-5, 2 / 5, 1.0460),
        (1e-4, 2 / 5, 0.9465),
        (2e-4, 2 / 5, 0.7694),
    ],
)
def test_the_settings_of_the_poster(eta_lambda: float, scale: float, mu: float) -> None:
    assert cycle(1 - eta_lambda, 60, 400, scale) == pytest.approx(mu, abs=5e-5)


@pytest.mark.parametrize(
    ("strength", "epochs", "mu"),
    [(0.002, 50, 0.9925), (0.004, 50, 0.9889), (0.002, 100, 1.2353), (0.004, 100, 1.2175), (0.002, 200, 1.5930)],
)
def test_their_logistic_regression(strength: float, epochs: int, mu: float) -> None:
    scale = 2 * 5 / (1500 * 0.01)  # gradients clipped to 5, batches of 1,500, noise of 0.01 on the mean
    assert cycle(1 - 0.05 * strength, 40, epochs, scale) == pytest.approx(mu, abs=5e-5)


@given(st.floats(0.1, 40.0), st.integers(1, 300))
def test_a_diameter_is_never_worse_than_its_closed_form_or_than_none(diameter: float, steps: int) -> None:
    found = cycle(1.0, 1, steps, diameter=diameter)
    assert found <= min(math.sqrt(3 * diameter + math.ceil(diameter)), math.sqrt(steps)) * (1 + 1e-9)


@given(st.floats(0.1, 40.0), st.integers(1, 12), st.integers(1, 20))
def test_a_diameter_helps_a_cycle_as_published(diameter: float, batches: int, epochs: int) -> None:
    closed = math.sqrt(1 + 3 * diameter / batches + math.ceil(diameter) / batches)
    found = cycle(1.0, batches, epochs, diameter=diameter)
    assert found <= cycle(1.0, batches, epochs) * (1 + 1e-12)
    if epochs * batches > 3 * diameter + batches:
        assert found <= closed * (1 + 1e-9)


# --- an independent quadratic program ---


def quadratic_program(steps: Steps, uses: list[int], diameter: float | None = None) -> float:
    """The optimum over the distances z, which must not be negative: a least-squares problem."""
    owes = np.zeros(len(steps))
    owes[uses] = steps.shift[uses]
    starts = [(0, 0.0)] if diameter is None else [(0, 0.0), *((start, diameter) for start in range(len(steps)))]
    return min(_least_squares(steps, owes, start, distance) for start, distance in starts)


def _least_squares(steps: Steps, owes: np.ndarray, start: int, distance: float) -> float:
    """Residuals: in step k, contraction times z_k, plus shift, minus z_(k+1). The first z is known, the last is 0."""
    number = len(steps) - start
    paid, known = np.zeros((number, number - 1)), owes[start:].copy()
    known[0] += steps.contraction[start] * distance
    for k in range(number - 1):
        paid[k, k] -= 1
        paid[k + 1, k] += steps.contraction[start + k + 1]
    deviation = steps.noise_std[start:]
    if number == 1:
        return float(known[0] / deviation[0])
    return float(nnls(paid / deviation[:, None], -known / deviation)[1])


@pytest.mark.parametrize("seed", range(12))
def test_the_string_is_the_quadratic_programs_optimum_at_every_position(seed: int) -> None:
    draw = np.random.default_rng(seed)
    batches, epochs, extra = int(draw.integers(1, 4)), int(draw.integers(1, 4)), int(draw.integers(0, 3))
    number = batches * epochs + extra
    steps = Steps(draw.uniform(0.6, 1.0, number), draw.uniform(0.5, 2.0, number), draw.uniform(0.2, 1.5, number))
    for position in range(batches):
        uses = [position + batches * epoch for epoch in range(epochs)]
        ours = mu_of_cycle(steps, batches=batches, epochs=epochs, position=position)
        assert ours == pytest.approx(quadratic_program(steps, uses), rel=1e-9)
        assert ours == mu_of_unit(steps, np.array(uses))


@pytest.mark.parametrize("seed", range(6))
def test_the_string_with_a_diameter_is_the_best_of_all_starts(seed: int) -> None:
    draw = np.random.default_rng(100 + seed)
    number = int(draw.integers(2, 7))
    steps = Steps(draw.uniform(0.7, 1.0, number), draw.uniform(0.5, 2.0, number), draw.uniform(0.5, 1.5, number))
    uses, diameter = np.flatnonzero(draw.random(number) < 0.6), float(draw.uniform(0.1, 1.5))
    expected = quadratic_program(steps, list(uses), diameter) if len(uses) else 0.0
    assert mu_of_unit(steps, uses, diameter=diameter) == pytest.approx(expected, rel=1e-9)


# --- laws ---


def test_no_bound_exceeds_composition() -> None:
    for batches, epochs in ((1, 50), (7, 20), (60, 400)):
        assert cycle(1.0, batches, epochs) <= math.sqrt(epochs) + 1e-12
    assert cycle(1.0, 1, 30) == pytest.approx(math.sqrt(30))


def test_only_the_last_batch_pays_the_whole_price_and_noise_alone_takes_it_away() -> None:
    steps = Steps.constant(60 * 400, contraction=1 - 5.4e-5, noise_multiplier=7.5)
    places = [mu_of_cycle(steps, batches=60, epochs=400, position=place) for place in (0, 54, 58, 59)]
    assert places == sorted(places)
    longer = Steps.constant(60 * 400 + 20, contraction=1 - 5.4e-5, noise_multiplier=7.5)
    assert mu_of_cycle(longer, batches=60, epochs=400) < 0.95 * places[-1]


@given(st.floats(0.3, 1.0), st.floats(0.3, 1.0), st.integers(1, 9), st.integers(1, 9))
def test_more_contraction_never_costs_privacy(a: float, b: float, batches: int, epochs: int) -> None:
    assert cycle(min(a, b), batches, epochs) <= cycle(max(a, b), batches, epochs) * (1 + 1e-9)


def test_contractions_so_strong_that_weights_vanish_are_no_trouble() -> None:
    assert cycle(1e-3, 2, 500) == pytest.approx(strongly_convex(1e-3, 2, 500), rel=1e-9)
    assert cycle(0.1, 50, 40) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("fading", [np.geomspace(1.0, 1e-12, 40), np.geomspace(1e-12, 1.0, 40)])
def test_steps_that_fade_away_or_in_still_pay_for_whom_they_see(fading: np.ndarray) -> None:
    steps = Steps(np.ones(40), 2.0 * fading, fading)
    assert mu_of_unit(steps, np.array([39])) == pytest.approx(0.5, rel=1e-9)
    assert mu_of_cycle(steps, batches=4, epochs=10) >= 0.5


def test_a_unit_that_never_takes_part_is_not_revealed() -> None:
    assert mu_of_unit(Steps.constant(5, contraction=1.0, noise_multiplier=1.0), np.array([], dtype=np.int64)) == 0.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"contraction": 1.1, "noise_multiplier": 1.0}, "contraction"),
        ({"contraction": 0.0, "noise_multiplier": 1.0}, "contraction"),
        ({"contraction": math.nan, "noise_multiplier": 1.0}, "contraction"),
        ({"contraction": 0.9, "noise_multiplier": 0.0}, "noise_std"),
        ({"contraction": 0.9, "noise_multiplier": math.inf}, "noise_std"),
    ],
)
def test_steps_that_mean_nothing_are_refused(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Steps.constant(3, **arguments)


def test_fewer_steps_than_a_cycle_has_are_refused() -> None:
    with pytest.raises(UsageError, match="steps"):
        mu_of_cycle(Steps.constant(5, contraction=1.0, noise_multiplier=1.0), batches=2, epochs=3)


# --- an attacker in one dimension ---


@pytest.mark.parametrize("position", [0, 2])
def test_the_last_iterate_reveals_no_more_than_the_bound_and_nearly_as_much(position: int) -> None:
    """For linear maps, end points are normal with equal variance. mu is their distance in standard deviations."""
    c, batches, epochs, sigma = 0.95, 3, 4, 1.3
    number = batches * epochs
    weight = c ** np.arange(number - 1, -1, -1)
    uses = position + batches * np.arange(epochs)
    distance, deviation = weight[uses].sum(), sigma * math.sqrt((weight**2).sum())
    bound = cycle(c, batches, epochs, 1 / sigma, position=position)
    assert distance / deviation <= bound * (1 + 1e-12)


# --- as an event ---


def test_a_hidden_state_is_worth_its_gaussian_and_is_seen_at_its_end_only() -> None:
    event = HiddenStateDpEvent(noise_multiplier=2.0, steps=100)
    for adjacency, multiplier in ((Adjacency.ZERO_OUT, 2.0), (Adjacency.REPLACE_ONE, 1.0)):
        found = Guarantee.of(event, adjacency, delta=1e-5)
        exact = Guarantee.of(GaussianDpEvent(multiplier), Adjacency.ZERO_OUT, delta=1e-5)
        assert (found.accountant, found.view) == ("hidden-state", View.FINAL_MODEL)
        assert found.epsilon == exact.epsilon
        assert "sees the final model only" in found.statement


def test_a_hidden_state_composes_with_other_releases() -> None:
    both = ComposedDpEvent([HiddenStateDpEvent(2.0, 100), GaussianDpEvent(2.0)])
    found = Guarantee.of(both, Adjacency.ZERO_OUT, delta=1e-5)
    alone = Guarantee.of(GaussianDpEvent(math.sqrt(2)), Adjacency.ZERO_OUT, delta=1e-5)
    assert found.epsilon == pytest.approx(alone.epsilon, rel=1e-9)
    assert found.view is View.FINAL_MODEL


def test_a_hidden_state_has_no_bound_where_places_are_secret() -> None:
    with pytest.raises(UnsupportedEvent, match="public positions of units"):
        Guarantee.of(HiddenStateDpEvent(2.0, 100), Adjacency.ADD_OR_REMOVE, delta=1e-5)
