"""The smallest noise for which all trials of a tuning together stay within a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attr
from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino.accounting import privacy_of, smallest
from sordino.accounting.guarantee import rounded_up
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.noise import check_tail
from sordino.tuning.payments import Payment
from sordino.tuning.task import Task


def calibrated(
    task: Task,
    payment: Payment,
    sizes: Sequence[int],
    *,
    epsilon: float,
    delta: float,
    budget: Budget,
    run: RunIdentity | None = None,
) -> Task:
    """The task with the smallest noise for which all trials together stay within the target.

    Refuses a tuning that does not fit into the budget, unless the budget holds this very tuning, as `run`.
    """
    single: Any = task.plan.noise.event  # whatever the noise is, its event has a multiplier

    def event(noise_multiplier: float) -> DpEvent:
        trial = task.event_with(attr.evolve(single, noise_multiplier=noise_multiplier))
        return ComposedDpEvent([payment.event(trial, sizes)])

    _check_scores(task, payment, sizes, epsilon=epsilon, delta=delta)
    multiplier = smallest(event, task.plan.adjacency, epsilon=epsilon, delta=delta)
    if run is None or not budget.holds(run):
        budget.check_target(event, multiplier, task.plan.adjacency, what="tuning", delta=delta, epsilon=epsilon)
    found = task.with_noise(multiplier)
    all_steps = math.ceil(task.plan.steps * payment.expected_trials(sizes))
    check_tail(found.plan.noise, task.plan.adjacency, steps=all_steps, delta=delta)
    return found


def _check_scores(task: Task, payment: Payment, sizes: Sequence[int], *, epsilon: float, delta: float) -> None:
    """Where scores by themselves spend the target, no noise on gradients helps."""
    spent = privacy_of(payment.event(task.score.event, sizes), task.plan.adjacency).epsilon(delta)
    if spent >= epsilon:
        raise UsageError(
            f"the scores of the trials alone would cost epsilon {rounded_up(spent)} of {epsilon:g}: "
            "put more noise on them (--score-std), or plan fewer trials."
        )


def multiplier_of(task: Task) -> float:
    """Of the noise in each step of a trial."""
    release: Any = task.plan.noise.event  # whatever the noise is, its event has a multiplier
    return float(release.noise_multiplier)
