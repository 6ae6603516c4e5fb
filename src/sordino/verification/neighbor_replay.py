"""Neighbor replay: one step on neighboring datasets with frozen randomness, and the distance of the two sums.

Before that, gradients of rows by the tape are compared with autograd's. A wrong rule is no leak, because norm and sum
are of the same gradient, but a model would train on wrong gradients without a warning.
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
    """Compares gradients on synthetic rows. Yields nothing for other contributions, and for models without a tape."""
    if not isinstance(plan.contribution, LossGradient):
        return
    agreement = plan.contribution.agreement(model, records)
    if agreement is not None:
        what = f"relative difference from autograd in {agreement.parameter!r}"
        yield at_most(GRADIENTS, what, agreement.error, agreement.tolerance)


def replay(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> Iterator[Finding]:
    """Computes sums with and without each unit of a hostile batch, and of each unit alone, for two micro-batch sizes.

    Without the unit, the sum of the others may round differently. This counts too: the clip leaves room for it.
    """
    units = hostile(records)
    all_units = torch.arange(units.num_units)
    for physical in (units.num_units, 5):
        run = SyntheticRun.fresh(with_poisson(plan, rate=1.0, steps=1), model, units, seed=seed, physical=physical)
        yield from _neighbors(run, plan, all_units)
    empty = run.sum_of(all_units[:0])
    yield at_most(NAME, "norm of the sum over no units", float(empty.norm()), 0.0)
    yield from _failing(plan, model, records)


def _neighbors(run: SyntheticRun, plan: Plan, all_units: Tensor) -> Iterator[Finding]:
    bound, size = plan.clip.bound, f"{run.run.physical_batch_size} at a time"
    whole = run.sum_of(all_units)
    yield at_most(NAME, "non-finite coordinates of the sum", float((~whole.isfinite()).sum()), 0.0)
    alone = [run.sum_of(unit[None]) for unit in all_units]
    yield at_most(NAME, f"norm that one unit adds alone ({size})", _largest(alone), bound)
    others = [run.sum_of(all_units[all_units != unit]) for unit in all_units]
    moved = [whole - rest for rest in others]
    yield at_most(NAME, f"norm that one unit adds to the others ({size})", _largest(moved), bound)
    if plan.adjacency is Adjacency.REPLACE_ONE:
        swapped = [left - right for left in others for right in others]
        yield at_most(NAME, f"change by replacing one unit ({size})", _largest(swapped), 2 * bound)


def _failing(plan: Plan, model: nn.Module, records: Records) -> Iterator[Finding]:
    """Compares a batch in which the model fails on a row with one in which the row is absent: sums must be equal.

    They must be equal bit for bit, because the other rows must be computed by the same kernels.
    """
    batch, seeds = failing(records), torch.arange(FAILING_AMONG, device=device_of(model))
    absent = batch.without(torch.arange(len(seeds)) == 0)
    each, expected = (plan.contribution.of(model, rows, seeds) for rows in (batch, absent))
    if not each.squared_norms()[0].any():  # otherwise the model accepts any integer, and does not fail
        moved = plan.clip(each).value.double() - plan.clip(expected).value.double()
        yield at_most(NAME, "change by a row on which the model fails", float(moved.norm()), 0.0)


def _largest(vectors: list[Tensor]) -> float:
    """The largest norm. NaN if a norm is NaN, which is above every limit."""
    return float(torch.stack([vector.norm() for vector in vectors]).max())
