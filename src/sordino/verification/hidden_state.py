"""Checks of a hidden-state plan: those of its kernel, and that its steps are contractions.

The bound for the last iterate assumes that each step has the Lipschitz constant that the plan states, and that no
earlier iterate is observed. The first is measured here. The second cannot be measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.convex.hidden_run import kernel_plan
from sordino.convex.noisy_cgd import Fading, NoisyCGD
from sordino.errors import UsageError
from sordino.kernel.records import Data, Records, as_records
from sordino.kernel.step import Plan
from sordino.training.schedules import Constant
from sordino.verification import verify
from sordino.verification.synthetic import SyntheticRun, hostile, with_poisson
from sordino.verification.verdict import Finding, Verdict, at_most, equal

NAME = "contraction of steps"
NOT_CHECKED = (
    "that no iterate before the last one is observed, which the bound assumes;",
    "the bound for the last iterate itself, which is proved and not measured.",
)
_EVERY, _MOST_DESCENT = 5, 100  # every fifth hostile row is used; largest number of descent steps
_STEPS = 1000
_ROUNDING = 1e-3  # rounding of float32 gradients, relative to their difference, which is much smaller than they are


def verify_hidden_state(plan: NoisyCGD, data: Data, *, outputs: int, delta: float = 1e-5, seed: int = 0) -> Verdict:
    """Tries to refute the assumptions of a hidden-state plan, on synthetic records of the shape of `data`.

    `outputs` is the public number of classes, or 1.

    >>> from sordino.convex.model import GatedReLU
    >>> from sordino.kernel.sampling import Cyclic
    >>> plan = NoisyCGD(Cyclic(4, 2), GatedReLU(8), clip=1.0, noise_multiplier=4.0, learning_rate=1.0)
    >>> rows = torch.zeros(40, 50), torch.zeros(40, dtype=torch.int64)
    >>> print(verify_hidden_state(plan, rows, outputs=3).says)
    not refuted
    """
    validate.instance(NoisyCGD, plan=plan)
    records = as_records(data)
    model = plan.model.build(records.template(1).inputs[0].numel(), outputs)
    kernel = verify(lasting_kernel(plan), model, records, delta=delta, seed=seed)
    return Verdict((*kernel.findings, *_contraction(plan, model, records, seed)))


def lasting_kernel(plan: NoisyCGD) -> Plan:
    """The kernel plan of a hidden-state plan, with noise for as many steps as a verification takes."""
    if plan.noise_schedule != Constant():
        raise UsageError("noise that changes from step to step cannot be verified: use a constant noise schedule.")
    return replace(kernel_plan(plan), noise=Fading(plan.noise_multiplier, plan.noise_schedule, _STEPS))


def _contraction(plan: NoisyCGD, model: nn.Module, records: Records, seed: int) -> Iterator[Finding]:
    """Measures how far two iterates are apart after the longest step of the plan, on one row and without noise.

    A step on one row moves along that row's gradient only, and a clipped gradient has constant length. So the two
    iterates differ along the gradient, at a point where it is shorter than the clip norm.
    """
    run = SyntheticRun.fresh(with_poisson(lasting_kernel(plan), rate=1.0, steps=1), model, hostile(records), seed=seed)
    rate = max(plan.learning_rate_at(step) for step in range(plan.steps))
    ratios = []
    for unit in range(0, run.records.num_units, _EVERY):
        here, slope = _unclipped(plan, run, unit)
        if float(slope.norm()) > 0:
            there = here + plan.clip / 4 * slope / slope.norm()
            moved = rate * (slope - _gradient(run, there, unit))
            apart = (1 - rate * plan.strength) * (here - there) - moved
            ratios.append(float(apart.norm() / (here - there).norm()))
    claimed = plan.loss.curvature(plan.model.feature_bound, plan.clip).contraction(rate, plan.strength)
    yield equal(NAME, "whether any row has a gradient shorter than the clip norm", float(bool(ratios)), 1.0)
    worst = max(ratios, default=0.0)
    yield at_most(NAME, "ratio of the distances of two iterates after and before a step", worst, claimed + _ROUNDING)


def _unclipped(plan: NoisyCGD, run: SyntheticRun, unit: int) -> tuple[Tensor, Tensor]:
    """An iterate at which the row's gradient is at most half the clip norm, found by descent, and this gradient."""
    iterate = torch.zeros(run.run.layout.size, dtype=torch.float64)
    for _ in range(_MOST_DESCENT):
        slope = _gradient(run, iterate, unit)
        if float(slope.norm()) <= plan.clip / 2:
            return iterate, slope
        iterate = iterate - slope / 2
    return iterate, torch.zeros_like(iterate)


def _gradient(run: SyntheticRun, iterate: Tensor, unit: int) -> Tensor:
    nn.utils.vector_to_parameters(iterate.float(), run.model.parameters())
    return run.sum_of(torch.tensor([unit]))
