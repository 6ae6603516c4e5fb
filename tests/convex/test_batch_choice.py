"""Choice of the batch size by the accountant: small batches with nearly minimal noise, and no access to data."""

from __future__ import annotations

import pytest

import sordino as so
from sordino.convex import Linear, NoisyCGD
from sordino.convex.batch_choice import BatchChoice, choose_batches, given_batches
from sordino.errors import UsageError

EXAMPLES = 60_000


def noise_on_the_mean(choice: BatchChoice) -> float:
    """The noise on the mean gradient after calibration of the plan, relative to the clip norm."""
    start = NoisyCGD(
        so.Cyclic(1, 1, so.Adjacency.REPLACE_ONE), Linear(), clip=1.0, noise_multiplier=1.0, learning_rate=1.0
    )
    plan = choice.applied_to(start).calibrated(epsilon=1.33, delta=1e-5)
    return plan.noise_multiplier * choice.batches_per_epoch / EXAMPLES


@pytest.mark.parametrize("slack", [0.03, 0.1])
def test_the_noise_is_within_the_slack_of_full_batches_by_the_plans_own_calibration(slack):
    choice, full = choose_batches(1200, examples=EXAMPLES, slack=slack), given_batches(1, steps=1200)
    ratio = noise_on_the_mean(choice) / noise_on_the_mean(full)
    more_steps = ((1200 + choice.trailing_steps) / 1200) ** 0.5
    assert 1 < ratio * more_steps < (1 + slack) * 1.02


def test_more_slack_buys_smaller_batches():
    batches = [choose_batches(1200, examples=EXAMPLES, slack=slack).batches_per_epoch for slack in (0.0, 0.03, 0.1)]
    assert batches[0] == 1 and batches == sorted(batches) and len(set(batches)) == 3


def test_a_longer_run_may_have_smaller_batches():
    batches = [choose_batches(steps, examples=EXAMPLES).batches_per_epoch for steps in (100, 1200, 9000)]
    assert batches == sorted(batches) and len(set(batches)) == 3


@pytest.mark.parametrize("steps", [1, 2, 7, 97, 1200])
def test_about_as_many_steps_are_taken_as_were_asked_for(steps):
    choice = choose_batches(steps, examples=EXAMPLES)
    assert abs(choice.batches_per_epoch * choice.epochs - steps) <= 0.02 * steps


def test_there_are_never_more_batches_than_examples():
    assert choose_batches(9000, examples=20).batches_per_epoch <= 20


def test_trailing_steps_are_chosen_where_they_lower_the_noise():
    with_trailing, without = given_batches(60, steps=1200), BatchChoice(60, 20, 0, 0.0)
    assert with_trailing.trailing_steps > 0
    assert noise_on_the_mean(with_trailing) < 0.95 * noise_on_the_mean(without)


@pytest.mark.parametrize("bad", [{"steps": 0}, {"steps": 10, "examples": 0}, {"steps": 10, "slack": -0.1}])
def test_what_cannot_be_chosen_is_refused(bad):
    with pytest.raises(UsageError):
        choose_batches(bad.pop("steps"), **({"examples": 100} | bad))
