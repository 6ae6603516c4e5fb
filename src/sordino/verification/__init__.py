"""Gray-box checks of a plan on synthetic data: cheap, deterministic, and far better at finding bugs than an audit.

`verify` runs the kernel's step on neighboring datasets with frozen randomness, and compares noise, batches, steps,
constants and accounting with the assumptions of the guarantee. It uses no record of the data, only its public shape.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from sordino._input import validate
from sordino.kernel.records import Data
from sordino.kernel.step import Plan
from sordino.training.fit import records_for
from sordino.verification import neighbor_replay, noise_checks, sampler_checks, step_count
from sordino.verification.verdict import Finding as Finding
from sordino.verification.verdict import Verdict as Verdict


def verify(plan: Plan, model: nn.Module, data: Data, *, delta: float = 1e-5, seed: int = 0) -> Verdict:
    """Tries to refute the guarantee of `plan` for `model`, on synthetic records of the shape of `data`.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0), so.Gaussian(1.0)
    >>> plan = so.Plan(so.Poisson(rate=0.1, steps=50), gradient, clip, noise)
    >>> print(so.verify(plan, nn.Linear(99, 9), (torch.zeros(100, 99), torch.zeros(100, dtype=torch.int64))).passed)
    True
    """
    validate.instance(Plan, plan=plan)
    validate.between(1e-300, 1, high_open=True, delta=delta)
    return Verdict(tuple(_findings(plan, model, data, delta, seed)))


def _findings(plan: Plan, model: nn.Module, data: Data, delta: float, seed: int) -> Iterator[Finding]:
    records = records_for(model, data)
    yield from neighbor_replay.compare_gradients(plan, model, records)
    yield from neighbor_replay.replay(plan, model, records, seed=seed)
    yield from noise_checks.examine(plan, model, records, seed=seed, delta=delta)
    yield from sampler_checks.examine(plan.sampler, seed=seed)
    yield from step_count.count_steps(plan, model, records, seed=seed)
    yield from step_count.compare_constants(plan, model, records, seed=seed)
    yield from step_count.compare_releases(plan, model, records, seed=seed)
    yield from step_count.compare_golden_epsilons()
