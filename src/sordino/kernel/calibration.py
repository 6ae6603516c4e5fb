"""The smallest noise for a target: `calibrate` solves for the one unknown of a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import attr
from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino._input import validate
from sordino.accounting import smallest
from sordino.accounting.answer import check_delta
from sordino.accounting.pure import is_pure
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.step import Plan

WEAKEST_EPSILON = 20.0


def calibrate(
    plan: Plan, *, epsilon: float, delta: float, budget: Budget | None = None, allow_weak: bool = False
) -> Plan:
    """The same plan with the smallest noise whose epsilon is at most the target, rounded to the safe side.

    With a `budget`, the target is for the plan together with all that the budget holds already.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    >>> plan = so.Plan(so.Poisson(rate=0.01, steps=100), gradient, clip, noise)
    >>> plan = so.calibrate(plan, epsilon=1.0, delta=1e-5)
    >>> 0.99 < plan.guarantee(delta=1e-5).epsilon <= 1.0
    True
    """
    check_target(epsilon, delta, allow_weak=allow_weak, release=plan.noise.event)

    single: Any = plan.noise.event  # whatever the noise is, its event has a multiplier

    def event(noise_multiplier: float) -> DpEvent:
        # An event has no largest noise as a stage has, so that the search can say how much a target would need.
        release = attr.evolve(single, noise_multiplier=noise_multiplier)
        candidate = plan.sampler.compose(release, plan.steps)
        return candidate if budget is None else ComposedDpEvent([budget.event, candidate])

    multiplier = smallest(event, plan.adjacency, epsilon=epsilon, delta=delta)
    calibrated = replace(plan, noise=plan.noise.with_multiplier(multiplier))
    calibrated.check_noise(delta)
    return calibrated


def check_target(epsilon: float, delta: float, *, allow_weak: bool = False, release: DpEvent | None = None) -> None:
    """Refuses targets that mean nothing, and weak ones unless they are asked for.

    A delta of 0 means something where each step is a pure `release`.
    """
    validate.positive(epsilon=epsilon)
    check_delta(delta, is_pure=release is not None and is_pure(release))
    if epsilon > WEAKEST_EPSILON and not allow_weak:
        raise UsageError(
            f"epsilon must be at most {WEAKEST_EPSILON:g} to mean something, got {validate.shown(epsilon)}; "
            "pass allow_weak (--allow-weak) to go on all the same."
        )


def check_delta_for(examples: int, delta: float, *, allow_large_delta: bool = False) -> None:
    """Refuses a delta that allows one example in the (public) number of them to be published outright."""
    if delta >= 1 / examples and not allow_large_delta:
        raise UsageError(
            f"delta must be below 1 / examples = {1 / examples:.2g}, got {validate.shown(delta)}; "
            "pass allow_large_delta (--allow-large-delta) to go on all the same."
        )
