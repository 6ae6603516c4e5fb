"""Learning rates are functions of the step and the number of steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import UsageError
from sordino.training.schedules import Constant, Cosine, Schedule, Step, Warmup, parse

SCHEDULES = [Constant(), Warmup(0.1), Warmup(0.0), Warmup(1.0), Cosine(), Cosine(0.1, 0.2), Step(), Step((0.3,), 0.5)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@given(steps=st.integers(1, 400))
def test_every_step_has_a_rate_above_zero_and_at_most_the_full_one(schedule, steps):
    assert isinstance(schedule, Schedule)
    assert all(0 < schedule.factor(step, steps) <= 1 for step in range(steps))


@given(fraction=st.floats(0.01, 1), steps=st.integers(1, 300))
def test_a_warm_up_rises_by_equal_steps_to_the_full_rate(fraction, steps):
    rising = fraction * steps
    for step in range(steps):
        expected = 1.0 if step + 1 >= rising else (step + 1) / rising
        assert math.isclose(Warmup(fraction).factor(step, steps), expected)


@given(final=st.floats(0, 1), steps=st.integers(2, 300))
def test_a_cosine_falls_from_one_and_would_reach_its_end_a_step_after_the_last(final, steps):
    factors = [Cosine(final).factor(step, steps) for step in range(steps)]
    assert factors[0] == 1.0 and factors == sorted(factors, reverse=True)
    for step, factor in enumerate(factors):
        assert math.isclose(factor, final + (1 - final) * (1 + math.cos(math.pi * step / steps)) / 2, abs_tol=1e-12)


def test_a_cosine_starts_to_fall_where_its_warm_up_ends():
    factors = [Cosine(warmup=0.25).factor(step, 16) for step in range(16)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0] and factors[5] < 1.0
    assert math.isclose(factors[10], 0.5)


def test_a_step_falls_at_its_fractions_and_nowhere_else():
    factors = [Step((0.5, 0.9), 0.1).factor(step, 10) for step in range(10)]
    assert factors == [1.0] * 5 + [0.1] * 4 + [0.1**2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constant", Constant()),
        ("warmup", Warmup()),
        ("warmup:0.05", Warmup(0.05)),
        ("cosine", Cosine()),
        ("cosine:0.1", Cosine(0.1)),
        ("cosine:0:0.05", Cosine(0.0, 0.05)),
        ("step", Step()),
        ("step:0.4", Step((0.4,))),
        ("step:0.5,0.75:0.2", Step((0.5, 0.75), 0.2)),
    ],
)
def test_a_schedule_is_read_from_its_text(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be constant, warmup, cosine or step"),
        ("linear", "must be constant, warmup, cosine or step"),
        ("Cosine", "must be constant, warmup, cosine or step"),
        ("constant:1", "schedule must be constant, without settings, got 'constant:1'"),
        ("cosine:0:0:0", "schedule must be cosine:FINAL:WARMUP with .*, got 'cosine:0:0:0'"),
        ("cosine:", "schedule must be cosine:FINAL:WARMUP with .*, got 'cosine:'"),
        ("cosine:x", "schedule must be cosine:FINAL:WARMUP with"),
        ("step:0.5;0.7", "schedule must be step:PLACES:FACTOR with"),
        ("cosine:nan", r"schedule must be cosine:FINAL:WARMUP with FINAL in \[0, 1\] .*, got 'cosine:nan'"),
        ("cosine:0:1", r"schedule must be .* WARMUP in \[0, 1\), got 'cosine:0:1'"),
        ("warmup:2", r"schedule must be warmup:FRACTION with FRACTION in \[0, 1\], got 'warmup:2'"),
        ("step:0.7,0.5", "schedule must be step:PLACES:FACTOR with rising PLACES .*, got 'step:0.7,0.5'"),
        ("step:1", r"schedule must be step:PLACES:FACTOR with rising PLACES in \(0, 1\), .*, got 'step:1'"),
        ("step:0.5:-1", "schedule must be .* FACTOR above 0, got 'step:0.5:-1'"),
    ],
)
def test_a_text_that_is_no_schedule_is_refused_in_one_line(text, message):
    with pytest.raises(UsageError, match=message) as error:
        parse(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize(("step", "steps"), [(10, 10), (-1, 10), (0, 0), (0.0, 10)])
def test_a_step_outside_the_run_is_refused(schedule, step, steps):
    with pytest.raises(UsageError, match=r"steps? must be a whole number"):
        schedule.factor(step, steps)
