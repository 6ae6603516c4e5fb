"""Neighbour replay: the same step on D and on D', with the randomness frozen, and how far the sum moved.

Before that, the fast way to a row's gradient against autograd's. A wrong rule is no leak, because norm and sum are of
the same gradient; but a model would train on it without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from sordino.accounting import Adjacency
from sordino.gradients.torch_state import device_of
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import Records
from sordino.kernel.step import Plan
from sordino.verification.synthetic import FAILING_AMONG, SyntheticRun, failing, hostile, with_poisson
from sordino.verification.verdict import Finding, at_most

NAME, GRADIENTS = "sensitivity replay", "gradients of rows"


def compare_gradients(plan: Plan, model: nn.Module, records: Records) -> Iterator[Finding]:
    """Compares on synthetic rows. Nothing is found where gradients are not those of a loss, or are autograd's own."""
    if not isinstance(plan.contribution, LossGradient):
        return
    found = plan.contribution.agreement(model, records)
    if found is not None:
        yield at_most(
            GRADIENTS, f"relative difference from autograd in {found.parameter!r}", found.error, found.tolerance
        )


def replay(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """Takes every unit of a hostile batch out in turn, alone, and in micro-batches of two sizes.

    What the others' sum rounds otherwise without it counts as well: the clip has paid for that.
    """
    units = hostile(records)
    everybody = torch.arange(units.num_units)
    for physical in (units.num_units, 5):
        run = SyntheticRun.fresh(with_poisson(plan, rate=1.0, steps=1), model, units, seed=seed, physical=physical)
        yield from _neighbours(run, plan, everybody)
    nobody = run.sum_of(everybody[:0])
    yield at_most(NAME, "norm of the sum over nobody", float(nobody.norm()), 0.0)
    yield from _failing(plan, model, records)


def _neighbours(run: SyntheticRun, plan: Plan, everybody: Tensor) -> Iterator[Finding]:
    bound, held = plan.clip.bound, f"{run.run.physical_batch_size} at a time"
    whole = run.sum_of(everybody)
    yield at_most(NAME, "non-finite coordinates of the sum", float((~whole.isfinite()).sum()), 0.0)
    alone = [run.sum_of(unit[None]) for unit in everybody]
    yield at_most(NAME, f"what one unit adds alone ({held})", _largest(alone), bound)
    others = [run.sum_of(everybody[everybody != unit]) for unit in everybody]
    moved = [whole - rest for rest in others]
    yield at_most(NAME, f"what one unit adds to the rest ({held})", _largest(moved), bound)
    if plan.adjacency is Adjacency.REPLACE_ONE:
        swapped = [left - right for left in others for right in others]
        yield at_most(NAME, f"replacing one unit ({held})", _largest(swapped), 2 * bound)


def _failing(plan: Plan, model: nn.Module, records: Records) -> Iterator[Finding]:
    """How far the sum is from that with an absent row in this place, bit for bit: the others are computed as before."""
    batch, seeds = failing(records), torch.arange(FAILING_AMONG, device=device_of(model))
    absent = batch.without(torch.arange(len(seeds)) == 0)
    found, expected = (plan.contribution.of(model, rows, seeds) for rows in (batch, absent))
    if not found.squared_norms()[0].any():  # or else the model makes something of any whole number
        moved = plan.clip(found).value.double() - plan.clip(expected).value.double()
        yield at_most(NAME, "what a row moves that the model fails on", float(moved.norm()), 0.0)


def _largest(vectors: list[Tensor]) -> float:
    """The largest norm; NaN if any is, which no limit admits."""
    return float(torch.stack([vector.norm() for vector in vectors]).max())
