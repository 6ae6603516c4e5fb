"""Steps planned, taken and counted are one number; what is released depends on no secret size, and shares no noise."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from sordino.accounting import Adjacency
from sordino.kernel.budget import Budget
from sordino.kernel.records import Records
from sordino.kernel.run import Plan, PrivateRun
from sordino.verification.synthetic import fresh_run, ordinary, undecoded, with_poisson
from sordino.verification.verdict import Finding, at_most, equal

STEPS, CONSTANTS, RELEASES = "step ledger", "constants on neighbours", "releases of one budget"
_STEPS, _RATE_OF_NOBODY = 30, 1e-3


def count_steps(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """A run in which nearly every batch is empty still takes every step, and counts each before its noise."""
    rare = with_poisson(plan, rate=0.02, steps=_STEPS)
    run = fresh_run(rare, model, ordinary(records, 2), seed=seed)
    begun = [run.steps for _ in run]
    yield equal(STEPS, "steps taken", len(begun), rare.steps)
    yield equal(STEPS, "steps counted", run.steps, rare.steps)
    yield equal(
        STEPS, "steps counted before their gradient is out", sum(k == i + 1 for i, k in enumerate(begun)), _STEPS
    )
    event_is_composed = plan.event == plan.sampler.compose(plan.noise.event, plan.sampler.steps)
    yield equal(STEPS, "event is that of the sampler and the noise", float(event_is_composed), 1.0)


def compare_constants(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """On data sets that differ by one record every constant is the same; where the size is public it may set them."""
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE:
        return
    larger, smaller = (_constants(fresh_run(plan, model, ordinary(records, size), seed=seed)) for size in (100, 99))
    for name, value in larger.items():
        yield at_most(CONSTANTS, f"change of {name}", abs(value - smaller[name]), 0.0)


def compare_releases(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """Two runs of one seed on one budget, in which hardly anybody joins: what each step releases is its noise.

    On a lattice of 2^-17 standard deviations two draws agree in one coordinate with chance below 2^-17, and so in three
    steps with chance below 2^-51.
    """
    nearly_nobody = undecoded(with_poisson(plan, rate=_RATE_OF_NOBODY, steps=3))
    budget = Budget(ordinary(records, 2))
    runs = [fresh_run(nearly_nobody, model, budget, seed=seed) for _ in range(2)]
    released = [[private.value for private in run] for run in runs]
    equals = [torch.equal(one, other) for one, other in zip(*released, strict=False) if len(one)]
    yield equal(RELEASES, "two runs of one seed with the same noise", float(bool(equals) and all(equals)), 0.0)


def _constants(run: PrivateRun) -> dict[str, float]:
    return {
        "the divisor": run.expected_batch_size,
        "the number of steps": len(run),
        "the physical batch": run.physical_batch_size,
        "epsilon": run.guarantee(delta=1e-5).epsilon,
    }
