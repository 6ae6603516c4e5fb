"""Forward passes of a batch, row by row, for a loss that the script computes afterwards."""

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
    """The outputs of all rows, from which each row's loss is computed, and the recorded pass for its gradient.

    `taped` is None where the tape does not support the model. The pass is then repeated row by row with the loss.
    """

    outputs: list[Tensor]
    spec: TreeSpec
    taped: Pass | None
    batch: Batch
    seeds: Tensor
    model: nn.Module

    def contributions(self, losses_of: RowLosses) -> PerExample:
        """The gradients of the rows. `losses_of(outputs)` returns a loss per row, a function of that row's outputs."""
        if len(self.seeds) == 0:
            return no_contributions(self.model)
        if self.taped is None:
            raise TapeUnavailable
        with pinned(original(self.model)), torch.enable_grad():
            outputs = [x.flatten(0, 1) for x in tree_flatten(self.taped.given)[0]]
            losses = losses_of(outputs)
            usable = losses.detach().isfinite() & self.batch.valid
            tape = self.taped.tape(losses, usable)
        return TapedGradients.of(tape, usable, [1] * len(self.seeds), Layout.of(self.model))


def no_contributions(model: nn.Module) -> Dense:
    """The contributions of an empty batch."""
    layout = Layout.of(model)
    return Dense(torch.zeros(0, layout.size, dtype=working_dtype(model), device=device_of(model)), layout)


def forward_pass(model: nn.Module, batch: Batch, seeds: Tensor) -> ForwardPass:
    """Runs the model on each row of `batch` on its own, with the tape if it supports the model."""
    if len(seeds) == 0:
        model_outputs = _outputs_row_by_row(model, _one_row_like(batch), torch.zeros(1, dtype=torch.int64))
        outputs, spec = tree_flatten(model_outputs)
        return ForwardPass([x.flatten(0, 1)[:0] for x in outputs], spec, None, batch, seeds, model)
    try:
        plan = survey_like(model, batch.inputs, batch.synthetic_row, names=batch.names)
        taped, batch = without_failing_rows(lambda rows, seeds: forward(model, rows.inputs, seeds, plan), batch, seeds)
        model_outputs = taped.given
    except (TapeUnavailable, RuntimeError, IndexError):
        model_outputs, taped = _outputs_row_by_row(model, batch, seeds), None
    outputs, spec = tree_flatten(model_outputs)
    return ForwardPass([x.detach().flatten(0, 1).clone() for x in outputs], spec, taped, batch, seeds, model)


def check_forward(model: nn.Module, batch: Batch) -> None:
    """Raises an error for a model that mixes rows of such inputs or stores values of them. Uses synthetic rows only."""
    rows = _one_row_like(batch)
    inputs = (x.expand(_PROBE_ROWS, *x.shape[1:]) for x in rows.inputs)
    records = as_records((*inputs, torch.zeros(_PROBE_ROWS)), dtype=working_dtype(model))
    LossGradient(_sum_of_outputs).check(model, records)


def _one_row_like(batch: Batch) -> Batch:
    inputs = tuple(x.new_zeros(1, *x.shape[1:]) for x in batch.inputs)
    target = batch.target.new_zeros(1, *batch.target.shape[1:])
    valid, units = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    return Batch(inputs, target, valid, units, 1, batch.names).synthetic()


def _sum_of_outputs(outputs: Any, target: Tensor) -> Tensor:
    total = target.new_zeros(())
    for x in tree_flatten(outputs)[0]:
        if not isinstance(x, Tensor):
            raise UsageError(f"the model must return tensors only, got {type(x).__name__} among its outputs.")
        total = total + x.sum() if x.is_floating_point() else total
    return total


def _outputs_row_by_row(model: nn.Module, batch: Batch, seeds: Tensor) -> Any:
    """Runs all rows under `vmap`, or in halves if that fails. A row that fails alone gets zeros, and fails later."""
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
            outputs, spec = tree_flatten(_outputs_row_by_row(model, batch.synthetic(), seeds))
            return spec.unflatten([torch.zeros_like(x) for x in outputs])
        parts = (slice(0, half), slice(half, len(seeds)))
        first, second = (tree_flatten(_outputs_row_by_row(model, batch.take(part), seeds[part])) for part in parts)
        return first[1].unflatten([torch.cat(pair) for pair in zip(first[0], second[0], strict=True)])
