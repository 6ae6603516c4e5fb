"""Checks of step counts, of constants on neighboring datasets, of noise shared by releases, and of known epsilons."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from sordino.accounting import Adjacency, privacy_of
from sordino.kernel.budget import Budget
from sordino.kernel.noise import Gaussian
from sordino.kernel.records import Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Poisson, Sampler, Shuffled
from sordino.kernel.step import Plan
from sordino.training.loop import releases_of
from sordino.verification.synthetic import fresh_run, ordinary, undecoded, with_poisson
from sordino.verification.verdict import Finding, at_most, equal

STEPS, CONSTANTS, RELEASES = "step ledger", "constants on neighbours", "releases of one budget"
ACCOUNTANT = "accountant golden values"
_STEPS, _RATE_OF_NOBODY = 30, 1e-3

_GOLDEN: tuple[tuple[Sampler, float, float, float, float], ...] = (
    # sampler, noise multiplier, delta, rigorous lower and upper bound on epsilon
    (Poisson(256 / 60_000, 14_062), 1.1, 1e-5, 2.371456, 2.391744),
    (Poisson(0.01, 10_000), 4.0, 1e-5, 0.936809, 0.956936),
    (Poisson(0.004, 1_000), 0.8, 1e-5, 1.273898, 1.294200),
    (Poisson(1.0, 100), 10.0, 1e-5, 4.377178, 4.377179),
    (Shuffled(50, 4), 2.0, 1e-5, 4.377178, 4.377179),
    (Shuffled(7, 100, Adjacency.REPLACE_ONE), 20.0, 1e-5, 4.377178, 4.377179),
)


def count_steps(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """Checks that a run whose batches are nearly all empty takes every step, and counts it before its noise."""
    rare = with_poisson(plan, rate=0.02, steps=_STEPS)
    run = fresh_run(rare, model, ordinary(records, 2), seed=seed)
    begun = [steps for steps, _ in releases_of(run)]
    yield equal(STEPS, "steps taken", len(begun), rare.steps)
    yield equal(STEPS, "steps counted", run.steps, rare.steps)
    counted_before = sum(k == i + 1 for i, k in enumerate(begun))
    yield equal(STEPS, "steps counted before their gradient is released", counted_before, _STEPS)
    event_is_composed = plan.event == plan.sampler.compose(plan.noise.event, plan.sampler.steps)
    yield equal(STEPS, "event is that of the sampler and the noise", float(event_is_composed), 1.0)


def compare_constants(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """Checks that constants are equal for datasets that differ by one record, if their size is not public."""
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE:
        return
    larger, smaller = (_constants(fresh_run(plan, model, ordinary(records, size), seed=seed)) for size in (100, 99))
    for name, value in larger.items():
        yield at_most(CONSTANTS, f"change of {name}", abs(value - smaller[name]), 0.0)


def compare_releases(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """Checks that two runs with one seed on one budget have different noise. Batches are nearly all empty.

    So each release is its noise. On a lattice of 2^-17 standard deviations, two draws agree in one coordinate with
    probability below 2^-17, and in three steps with probability below 2^-51.
    """
    nearly_empty = undecoded(with_poisson(plan, rate=_RATE_OF_NOBODY, steps=3))
    budget = Budget(ordinary(records, 2))
    runs = [fresh_run(nearly_empty, model, budget, seed=seed) for _ in range(2)]
    released = [[value for _, value in releases_of(run)] for run in runs]
    equals = [torch.equal(one, other) for one, other in zip(*released, strict=False) if len(one)]
    yield equal(RELEASES, "two runs of one seed with the same noise", float(bool(equals) and all(equals)), 0.0)


def compare_golden_epsilons() -> Iterator[Finding]:
    """Checks that known plans have known epsilons. Intervals are rigorous two-sided bounds.

    Source: numerical composition of the privacy loss with error bars (Gopi, Lee and Wutschitz 2021, error 0.01), and
    the closed form of the Gaussian mechanism (Balle and Wang 2018).
    """
    for sampler, multiplier, delta, low, high in _GOLDEN:
        event = sampler.compose(Gaussian(multiplier).event, sampler.steps)
        epsilon = privacy_of(event, sampler.adjacency).epsilon(delta)
        yield Finding(
            ACCOUNTANT,
            f"epsilon of {sampler.steps} {sampler.name} steps at noise {multiplier:g}",
            epsilon,
            f"[{low}, {high}]",
            low <= epsilon <= high,
        )


def _constants(run: PrivateRun) -> dict[str, float]:
    return {
        "the divisor": run.expected_batch_size,
        "the number of steps": len(run),
        "the physical batch": run.physical_batch_size,
        "epsilon": run.guarantee(delta=1e-5).epsilon,
    }
