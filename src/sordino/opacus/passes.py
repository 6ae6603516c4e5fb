"""Forward passes of a batch, row by row, for a loss that the script computes afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from sordino.errors import UsageError
from sordino.gradients.loop import why_alone
from sordino.gradients.one_pass import TensorTracker, one_pass
from sordino.gradients.probes import called
from sordino.gradients.probes import forward as probe
from sordino.gradients.recurrent import OwnInitialState, unrolled
from sordino.gradients.tape import Pass, TapeUnavailable, forward, give_up, survey_like, why_given_up
from sordino.gradients.taped import TapedGradients
from sordino.gradients.torch_state import call, device_of, original, pinned, working_dtype
from sordino.gradients.vmapped import drawing_by_row, fixed_values, trained_values
from sordino.kernel.contribution import LossGradient, without_failing_rows
from sordino.kernel.records import Batch, Records, as_records
from sordino.kernel.states import Dense, Layout, PerExample
from sordino.opacus.batch_of_one import Habits

RowLosses = Callable[[list[Tensor]], Tensor]
_PROBE_ROWS = 6
_TARGET = "target of rows"  # not an identifier, so no input has this name


@dataclass(frozen=True, repr=False)
class ForwardPass:
    """The outputs of all rows, from which each row's loss is computed, and the recorded pass for its gradient.

    `numbers` are the places of outputs that are a single number for a batch, such as a loss that the model computes.
    `taped` is None where the tape does not support the model. The pass is then repeated row by row with the loss.
    """

    outputs: list[Tensor]
    numbers: frozenset[int]
    spec: TreeSpec
    taped: Pass | None
    batch: Batch
    seeds: Tensor
    model: nn.Module

    @classmethod
    def of(cls, given: Any, taped: Pass | None, batch: Batch, seeds: Tensor, model: nn.Module) -> ForwardPass:
        """A pass from the model's outputs for batches of one, rows first."""
        results, spec = tree_flatten(given)
        numbers = frozenset(place for place, x in enumerate(results) if x.ndim == 1)
        outputs = [_by_row(x.detach())[: len(seeds)].clone() for x in results]
        return cls(outputs, numbers, spec, taped, batch, seeds, model)

    def contributions(self, losses_of: RowLosses) -> PerExample:
        """The gradients of the rows. `losses_of(outputs)` returns a loss per row, a function of that row's outputs."""
        if len(self.seeds) == 0:
            return no_contributions(self.model)
        if self.taped is None:
            raise TapeUnavailable
        with pinned(original(self.model)), torch.enable_grad():
            outputs = [_by_row(x) for x in tree_flatten(self.taped.given)[0]]
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
        given = _outputs_row_by_row(model, _one_row_like(batch), torch.zeros(1, dtype=torch.int64))
        return ForwardPass.of(given, None, batch, seeds, model)
    try:
        plan = survey_like(model, batch.inputs, batch.synthetic_row, names=batch.names)
        taped, batch = without_failing_rows(lambda rows, seeds: forward(model, rows.inputs, seeds, plan), batch, seeds)
    except (TapeUnavailable, RuntimeError, IndexError):
        return ForwardPass.of(_outputs_row_by_row(model, batch, seeds), None, batch, seeds, model)
    return ForwardPass.of(taped.given, taped, batch, seeds, model)


def check_forward(model: nn.Module, batch: Batch) -> None:
    """Raises an error for a model that mixes rows of such inputs or stores values of them. Uses synthetic rows only.

    A number that the model returns for a batch must be the mean of the numbers that it returns for single rows.
    """
    row = _one_row_like(batch)
    rows = replace(row, inputs=tuple(x.expand(_PROBE_ROWS, *x.shape[1:]).clone() for x in row.inputs))
    outputs = tree_leaves(probe(model, rows.inputs, rows.names))
    if all(not isinstance(x, Tensor) or x.ndim for x in outputs):
        LossGradient(_sum_of_outputs).check(model, _as_records(rows, working_dtype(model)))
        _refuse_if_alone(model, model)
        return
    others = _OutputsByRow(model)
    LossGradient(_sum_of_outputs).check(others, _as_records(rows, working_dtype(model)))
    _refuse_if_alone(others, model)
    reason = why_given_up(others)
    if reason is not None:
        give_up(model, reason)
    _check_numbers(model, rows)


def _refuse_if_alone(checked: nn.Module, model: nn.Module) -> None:
    """Refuses a model that runs on one example at a time only: a script computes one loss for all of them."""
    reason = why_alone(checked)
    if reason is not None:
        raise UsageError(
            f"{called('', original(model))} cannot be run on many examples at a time ({reason}): "
            "train it with sordino.fit, which runs one at a time."
        )


def names_of_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
    """The names of the arguments of `forward` that get the inputs, in order; empty if all are passed by position."""
    if not kwargs:
        return ()
    names = list(inspect.signature(original(model).forward).parameters)[: len(args)]
    return (*names, *kwargs)


def habits_of(model: nn.Module, batch: Batch) -> Habits:
    """What the model does that a pass over single rows has to treat. Uses synthetic rows only.

    Raises an error if a model that calls `squeeze()` gives other outputs for many rows than for each of them.
    """
    row, rows = _one_row_like(batch), batch.synthetic()
    habits = Habits.of(model, lambda: probe(model, row.inputs, row.names))
    if not habits.squeezes:
        return habits
    with _in_eval_mode(model), Habits(False, habits.has_other_outputs).treated(model):
        together = tree_leaves(probe(model, rows.inputs, rows.names))
    with _in_eval_mode(model), habits.treated(model):
        alone = forward_pass(model, rows, torch.arange(len(rows.target), device=rows.target.device)).outputs
    for one, many in zip(alone, together, strict=True):
        if many.ndim and not (one.shape == many.shape and torch.allclose(one, many, rtol=1e-3, atol=1e-5)):
            raise UsageError("the model gives another output for a single row: name the axis to squeeze.")
    return habits


class _OutputsByRow(nn.Module):
    """The model without those outputs that are a single number for a batch. Shares its tensors and layers."""

    _whole: nn.Module

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        shared = {name: vars(model)[name] for name in ("_parameters", "_buffers", "_modules")}
        vars(self).update(shared, training=model.training, _whole=model)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = tree_leaves(self._whole(*args, **kwargs))
        return [x for x in outputs if not isinstance(x, Tensor) or x.ndim]


def _as_records(rows: Batch, dtype: torch.dtype) -> Records:
    target = torch.zeros(len(rows.inputs[0]))
    if not rows.names:
        return as_records((*rows.inputs, target), dtype=dtype)
    return as_records({**dict(zip(rows.names, rows.inputs, strict=True)), _TARGET: target}, target=_TARGET, dtype=dtype)


def _check_numbers(model: nn.Module, rows: Batch) -> None:
    """Raises an error if a number that the model returns for a batch is not the mean over its rows."""
    rows = rows.synthetic()
    with _in_eval_mode(model):
        together = [x for x in tree_leaves(probe(model, rows.inputs, rows.names)) if x.ndim == 0]
        passed = forward_pass(model, rows, torch.arange(_PROBE_ROWS, device=rows.inputs[0].device))
    for number, place in zip(together, sorted(passed.numbers), strict=True):
        if not torch.allclose(passed.outputs[place].mean(), number, rtol=1e-3, atol=1e-5):
            raise UsageError(
                "a number that the model returns for a batch, such as its own loss, must be the mean of the numbers "
                "for single rows: compute the loss from the other outputs."
            )


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Switches off dropout, whose draws differ between passes."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def _one_row_like(batch: Batch) -> Batch:
    inputs = tuple(x.new_zeros(1, *x.shape[1:]) for x in batch.inputs)
    target = batch.target.new_zeros(1, *batch.target.shape[1:])
    valid, units = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    return Batch(inputs, target, valid, units, 1, batch.names).synthetic()


def _by_row(x: Tensor) -> Tensor:
    """The result for batches of one, rows first: without the axis of the batch, or unchanged for a number."""
    return x if x.ndim == 1 else x.flatten(0, 1)


def _sum_of_outputs(outputs: Any, target: Tensor) -> Tensor:
    total = target.new_zeros(())
    for x in tree_flatten(outputs)[0]:
        if not isinstance(x, Tensor):
            raise UsageError(f"the model must return tensors only, got {type(x).__name__} among its outputs.")
        total = total + x.sum() if x.is_floating_point() else total
    return total


def _outputs_row_by_row(model: nn.Module, batch: Batch, seeds: Tensor) -> Any:
    """Runs all rows under `vmap`, or in halves if that fails. A row that fails alone gets zeros, and fails later."""
    try:
        return _outputs_of_rows(model, batch, seeds)
    except (RuntimeError, IndexError):
        half = len(seeds) // 2
        if half == 0:  # raises the error if a synthetic row fails too
            outputs, spec = tree_flatten(_outputs_of_rows(model, batch.synthetic(), seeds))
            return spec.unflatten([torch.zeros_like(x) for x in outputs])
    parts = (slice(0, half), slice(half, len(seeds)))
    first, second = (tree_flatten(_outputs_row_by_row(model, batch.take(part), seeds[part])) for part in parts)
    return first[1].unflatten([torch.cat(pair) for pair in zip(first[0], second[0], strict=True)])


def _outputs_of_rows(model: nn.Module, batch: Batch, seeds: Tensor) -> Any:
    inner = original(model)
    values, dtype = {**trained_values(inner), **fixed_values(inner)}, working_dtype(inner)

    def of_one(row: tuple[Tensor, ...], zero: Tensor) -> Any:
        with TensorTracker(of_this_pass), OwnInitialState(zero), _Unrolled():
            return call(inner, values, tuple(x.unsqueeze(0) for x in row), batch.names)

    rows, zeros = tuple(x.to(dtype) if x.is_floating_point() else x for x in batch.inputs), torch.zeros(len(seeds))
    with pinned(inner), torch.no_grad(), one_pass() as of_this_pass:
        return drawing_by_row(
            lambda randomness: vmap(of_one, randomness=randomness)(rows, zeros.to(seeds.device)), seeds
        )


class _Unrolled(TorchFunctionMode):
    """Carries out torch's recurrent layers step by step, because `vmap` has no rule for them without a gradient."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        steps = unrolled(function, args, kwargs or {})
        return function(*args, **(kwargs or {})) if steps is None else steps()
