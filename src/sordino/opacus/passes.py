"""A forward pass of the rows of a batch whose loss the script computes afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import TreeSpec, tree_flatten

from sordino.errors import UsageError
from sordino.gradients.one_pass import TensorTracker, one_pass
from sordino.gradients.tape import Pass, TapeUnavailable, forward, survey_like
from sordino.gradients.taped import TapedGradients
from sordino.gradients.torch_state import device_of, original, pinned, working_dtype
from sordino.gradients.vmapped import drawing_by_row, fixed_values, trained_values
from sordino.kernel.contribution import LossGradient, without_failing_rows
from sordino.kernel.records import Batch, as_records
from sordino.kernel.states import Dense, Layout, PerExample

RowLosses = Callable[[list[Tensor]], Tensor]
_PROBE_ROWS = 6


@dataclass(frozen=True, repr=False)
class ForwardPass:
    """The outputs of all rows, as leaves from which each row's loss is computed, and the way back to the parameters.

    `taped` is None where the tape cannot follow the model: then the pass is made again, row by row, with the loss.
    """

    outputs: list[Tensor]
    spec: TreeSpec
    taped: Pass | None
    batch: Batch
    seeds: Tensor
    model: nn.Module

    def contributions(self, losses_of: RowLosses) -> PerExample:
        """What each row adds. `losses_of(outputs)` gives a loss per row, a function of that row of the outputs."""
        if len(self.seeds) == 0:
            return of_nobody(self.model)
        if self.taped is None:
            raise TapeUnavailable
        with pinned(original(self.model)), torch.enable_grad():
            given = [x.flatten(0, 1) for x in tree_flatten(self.taped.given)[0]]
            losses = losses_of(given)
            usable = losses.detach().isfinite() & self.batch.valid
            tape = self.taped.tape(losses, usable)
        return TapedGradients.of(tape, usable, [1] * len(self.seeds), Layout.of(self.model))


def of_nobody(model: nn.Module) -> Dense:
    """What no rows add."""
    layout = Layout.of(model)
    return Dense(torch.zeros(0, layout.size, dtype=working_dtype(model), device=device_of(model)), layout)


def forward_pass(model: nn.Module, batch: Batch, seeds: Tensor) -> ForwardPass:
    """Runs the model on each row of `batch` alone: on the tape if possible, without it if not."""
    if len(seeds) == 0:
        given, taped = _outputs_alone(model, _one_row_like(batch), torch.zeros(1, dtype=torch.int64)), None
        outputs, spec = tree_flatten(given)
        return ForwardPass([x.flatten(0, 1)[:0] for x in outputs], spec, None, batch, seeds, model)
    try:
        plan = survey_like(model, batch.inputs, batch.synthetic_row)
        taped, batch = without_failing_rows(lambda rows, seeds: forward(model, rows.inputs, seeds, plan), batch, seeds)
        given = taped.given
    except (TapeUnavailable, RuntimeError, IndexError):
        given, taped = _outputs_alone(model, batch, seeds), None
    outputs, spec = tree_flatten(given)
    return ForwardPass([x.detach().flatten(0, 1).clone() for x in outputs], spec, taped, batch, seeds, model)


def check_forward(model: nn.Module, batch: Batch) -> None:
    """Refuses a model that mixes the rows of inputs like these, or keeps what it saw. Looks at synthetic rows only."""
    rows = _one_row_like(batch)
    inputs = (x.expand(_PROBE_ROWS, *x.shape[1:]) for x in rows.inputs)
    records = as_records((*inputs, torch.zeros(_PROBE_ROWS)), dtype=working_dtype(model))
    LossGradient(_outputs_added_up).check(model, records)


def _one_row_like(batch: Batch) -> Batch:
    inputs = tuple(x.new_zeros(1, *x.shape[1:]) for x in batch.inputs)
    target = batch.target.new_zeros(1, *batch.target.shape[1:])
    return Batch(inputs, target, torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64), 1).synthetic()


def _outputs_added_up(outputs: Any, target: Tensor) -> Tensor:
    total = target.new_zeros(())
    for x in tree_flatten(outputs)[0]:
        if not isinstance(x, Tensor):
            raise UsageError(f"the model must give tensors, got {type(x).__name__} among its outputs.")
        total = total + x.sum() if x.is_floating_point() else total
    return total


def _outputs_alone(model: nn.Module, batch: Batch, seeds: Tensor) -> Any:
    """Rows are tried together; if that fails, in halves. A single row that fails has zeros, and fails again later."""
    inner = original(model)
    values, dtype = {**trained_values(inner), **fixed_values(inner)}, working_dtype(inner)

    def of_one(row: tuple[Tensor, ...]) -> Any:
        with TensorTracker(of_this_pass):
            return functional_call(inner, values, tuple(x.unsqueeze(0) for x in row))

    rows = tuple(x.to(dtype) if x.is_floating_point() else x for x in batch.inputs)
    try:
        with pinned(inner), torch.no_grad(), one_pass() as of_this_pass:
            return drawing_by_row(lambda randomness: vmap(of_one, randomness=randomness)(rows), seeds)
    except (RuntimeError, IndexError):
        half = len(seeds) // 2
        if half == 0:
            outputs, spec = tree_flatten(_outputs_alone(model, batch.synthetic(), seeds))
            return spec.unflatten([torch.zeros_like(x) for x in outputs])
        parts = (slice(0, half), slice(half, len(seeds)))
        first, second = (tree_flatten(_outputs_alone(model, batch.take(part), seeds[part])) for part in parts)
        return first[1].unflatten([torch.cat(pair) for pair in zip(first[0], second[0], strict=True)])
