"""Calibration of a plan: `calibrate` finds the smallest noise for a target epsilon."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import attr
from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino.accounting import smallest
from sordino.accounting.calibrate import WEAKEST_EPSILON as WEAKEST_EPSILON
from sordino.accounting.calibrate import check_delta_for as check_delta_for
from sordino.accounting.calibrate import check_target as check_target
from sordino.kernel.budget import Budget
from sordino.kernel.step import Plan


def calibrate(
    plan: Plan,
    *,
    epsilon: float,
    delta: float,
    budget: Budget | None = None,
    beside: DpEvent | None = None,
    allow_weak: bool = False,
) -> Plan:
    """Returns the plan with the smallest noise whose epsilon is at most the target, rounded to the safe side.

    With a `budget`, the target is for the plan together with all that the budget holds already; with an event
    `beside`, for the plan together with that event.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    >>> plan = so.Plan(so.Poisson(rate=0.01, steps=100), gradient, clip, noise)
    >>> plan = so.calibrate(plan, epsilon=1.0, delta=1e-5)
    >>> 0.99 < plan.guarantee(delta=1e-5).epsilon <= 1.0
    True
    """
    check_target(epsilon, delta, allow_weak=allow_weak, release=plan.noise.event)

    others = [event for event in (None if budget is None else budget.event, beside) if event is not None]

    def event(noise_multiplier: float) -> DpEvent:
        candidate = event_at(plan, noise_multiplier)
        return ComposedDpEvent([*others, candidate]) if others else candidate

    multiplier = smallest(event, plan.adjacency, epsilon=epsilon, delta=delta)
    calibrated = replace(plan, noise=plan.noise.with_multiplier(multiplier))
    calibrated.check_noise(delta)
    return calibrated


def event_at(plan: Plan, noise_multiplier: float) -> DpEvent:
    """The event of the plan with another noise multiplier.

    Events accept any multiplier, and noises do not, so a search can report how much noise a target would need.
    """
    single: Any = plan.noise.event  # the events of all noises have a `noise_multiplier`
    return plan.sampler.compose(attr.evolve(single, noise_multiplier=noise_multiplier), plan.steps)
