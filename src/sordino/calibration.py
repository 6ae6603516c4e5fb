"""The smallest noise for a target: `calibrate` solves for the one unknown of a plan."""

from __future__ import annotations

from dataclasses import replace

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino import validate
from sordino.accounting import smallest
from sordino.budget import Budget
from sordino.errors import UsageError
from sordino.run import Plan

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
    check_target(epsilon, delta, allow_weak=allow_weak)

    def event(noise_multiplier: float) -> DpEvent:
        candidate = plan.sampler.compose(plan.noise.with_multiplier(noise_multiplier).event, plan.steps)
        return candidate if budget is None else ComposedDpEvent([budget.event, candidate])

    multiplier = smallest(event, plan.adjacency, epsilon=epsilon, delta=delta)
    return replace(plan, noise=plan.noise.with_multiplier(multiplier))


def check_target(epsilon: float, delta: float, *, allow_weak: bool = False) -> None:
    """Refuses targets that mean nothing, and weak ones unless they are asked for."""
    validate.positive(epsilon=epsilon)
    validate.between(1e-300, 1, high_open=True, delta=delta)
    if epsilon > WEAKEST_EPSILON and not allow_weak:
        raise UsageError(
            f"epsilon must be at most {WEAKEST_EPSILON:g} to mean something, got {epsilon!r}; "
            "pass allow_weak to go on all the same."
        )
