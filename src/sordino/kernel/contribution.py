"""The contribution of each privacy unit to a step, before any bound: the gradient of its loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients import agreement
from sordino.gradients.agreement import Agreement
from sordino.gradients.loop import (
    LoopedGradients,
    check_alone,
    is_faster_alone,
    is_known_together,
    note_together,
    rows_are_large,
    run_alone,
    why_alone,
    why_not_together,
)
from sordino.gradients.one_pass import OneRowAtATimeOnly
from sordino.gradients.probes import layer_at_fault, one_line
from sordino.gradients.row_loss import Loss, RowLoss
from sordino.gradients.rules import is_registered
from sordino.gradients.tape import Survey, TapeUnavailable, give_up, record, survey_like
from sordino.gradients.taped import TapedGradients
from sordino.gradients.torch_state import device_of, original, working_dtype
from sordino.gradients.vmapped import gradients_of_rows
from sordino.kernel.augmentation import Views
from sordino.kernel.model_checks import check_isolation, check_model
from sordino.kernel.records import Batch, Records
from sordino.kernel.states import Dense, Layout, PerExample

_PROBE_ROWS, _FEW = 6, 2
_PROBE_BYTES = 64 << 20  # of all probe rows; large rows are probed with `_FEW` and one to replace them
_FAILURES = (RuntimeError, IndexError)  # torch raises these for an id outside a table, or for a singular matrix

Result = TypeVar("Result")


class SlowGradients(UserWarning):
    """The tape's gradients of a model were found to be wrong, so slower gradients, row by row, are used."""


@runtime_checkable
class Contribution(Protocol):
    """Computes the contribution of each unit from the records of some units."""

    def check(self, model: nn.Module, records: Records) -> None:
        """Refuses a model that cannot be used. It runs on synthetic records only, so it depends on nothing private."""
        ...

    def of(self, model: nn.Module, batch: Batch, seeds: Tensor) -> PerExample:
        """The contribution of each unit of `batch`. `seeds` is one int64 per row, for randomness inside the model."""
        ...

    def bytes_per_row(self, model: nn.Module, records: Records) -> int:
        """Approximate memory that `of` needs for each row. Depends on the model and on public shapes only."""
        ...


@dataclass(frozen=True)
class LossGradient:
    """The gradient of `loss(outputs, targets)`, averaged over the views of a row and summed over the rows of a unit.

    Guarantee: a unit's row of the result depends on that unit's records, its seeds and the parameters only. A row that
    is invalid, that has a label outside the model's classes, or on which the model fails, contributes exact zeros. Such
    a row does not change the kernels by which the others are computed: otherwise, the rounding of all rows would reveal
    that it was drawn.

    With `autocast` torch.bfloat16 the forward and backward passes run in mixed precision, and so do the products that
    form a row's gradient. Norms and sums are float32 or float64, and are those of the rounded gradients.

    >>> from sordino.kernel.records import as_records
    >>> batch = as_records((torch.ones(4, 3), torch.zeros(4))).gather(torch.tensor([0, 2]))
    >>> model = nn.Sequential(nn.Linear(3, 1), nn.Flatten(0))
    >>> each = LossGradient(nn.functional.mse_loss).of(model, batch, seeds=torch.tensor([5, 6]))
    >>> each.squared_norms().shape  # two examples; weight and bias
    torch.Size([2, 2])
    """

    loss: Loss
    autocast: torch.dtype | None = None
    views: Views = field(default_factory=Views)

    def __post_init__(self) -> None:
        RowLoss.of(self.loss)
        validate.instance(Views, views=self.views)
        if self.autocast not in (None, torch.bfloat16):
            raise UsageError(f"autocast must be torch.bfloat16 or None, got {validate.shown(self.autocast)}.")

    def check(self, model: nn.Module, records: Records) -> None:
        """Refuses a model that cannot be differentiated example by example. The error names the layer and a remedy."""
        check_model(model)
        with torch.inference_mode(False):  # inference tensors could not be differentiated
            template = records.template(_PROBE_ROWS).to(device_of(model))
        rows = self._rows_to_probe(model, template)
        template = template.take(slice(0, rows))
        check_isolation(model, self.loss, template, self.autocast)
        self.views.check(template, torch.arange(rows, device=device_of(model)))
        for length in (0,) if records.buckets is None else records.buckets.lengths:
            cut = records.cut(template, length)
            self._check_rows_together(model, cut)
            if self._runs_alone(model, cut):  # it needs no tape
                continue
            try:
                self._survey(model, cut)
            except (TapeUnavailable, *_FAILURES):  # in these cases the tape is not used
                self._check_vmap(model, cut)

    def _rows_to_probe(self, model: nn.Module, template: Batch) -> int:
        try:
            is_large = self._bytes_of_a_view(model, template) * _PROBE_ROWS > _PROBE_BYTES
        except Exception:  # the probes themselves name the layer at fault
            is_large = False
        return _FEW + 1 if is_large else _PROBE_ROWS

    def agreement(self, model: nn.Module, records: Records) -> Agreement | None:
        """Compares the tape's gradients of synthetic rows with autograd's. None if the model has no tape."""
        return self._agreement(model, records.template(1).to(device_of(model)))

    def _check_rows_together(self, model: nn.Module, rows: Batch) -> None:
        """Refuses a model that has no gradients for single rows, and notes one whose rows can only be run alone.

        The forward pass of the tape is one of many rows. If there is none, gradients by `vmap` are tried.
        """
        few = _few(rows)
        try:
            plan = survey_like(model, few.inputs, few.synthetic_row, self.autocast, few.names)
            record(model, self._row_loss(), few.inputs, few.target, few.units, plan)
        except UsageError as error:
            if not isinstance(error, OneRowAtATimeOnly):
                raise
        except Exception:  # `vmap` gives the reason
            pass
        else:
            note_together(model)
            return
        self._check_vmap(model, rows)

    def _check_vmap(self, model: nn.Module, rows: Batch) -> None:
        """Notes that rows run alone if `vmap` cannot compute their gradients, or computes others than autograd."""
        few = _few(rows)
        try:
            compared = self._agreement_of_vmap(model, few)
            if compared.holds:
                note_together(model)
                return
            reason = f"the gradient of {compared.parameter!r} by vmap differs from autograd's by {compared.error:.1e}"
        except OneRowAtATimeOnly as error:
            reason = why_not_together(error)
        except UsageError:
            raise
        except Exception as error:
            reason = why_not_together(error)
        try:
            check_alone(model, self._row_loss(), few, self.autocast)
        except UsageError:
            raise
        except Exception as error:
            raise _unusable(model, error) from error
        run_alone(model, reason)

    def of(self, model: nn.Module, batch: Batch, seeds: Tensor) -> TapedGradients | LoopedGradients | Dense:
        """The gradients of the units of `batch` in the layout of `model`: taped if possible, row by row if not."""
        if seeds.shape != batch.units.shape:
            raise UsageError(f"seeds must be one per row ({len(batch.units)}), got shape {tuple(seeds.shape)}.")
        batch, seeds = self.views.of(batch.to(device_of(model)), seeds.to(device_of(model)))
        try:
            return self._of_views(model, batch, seeds)
        except _RunsAlone:  # a model that was not checked
            return self._of_views(model, batch, seeds)

    def _of_views(self, model: nn.Module, batch: Batch, seeds: Tensor) -> TapedGradients | LoopedGradients | Dense:
        if self._runs_alone(model, batch):
            layout, together = Layout.of(model), why_alone(model) is None
            return LoopedGradients(model, self._row_loss(), batch, seeds, layout, self.autocast, together)
        return self._taped(model, batch, seeds) or self._row_by_row(model, batch, seeds)

    def bytes_per_row(self, model: nn.Module, records: Records) -> int:
        """Memory of a pass over a synthetic row; without a tape, that of three gradients: the result and its making."""
        row = records.template(1).to(device_of(model))
        if self._runs_alone(model, row):
            return self.views.number * sum(x.nbytes for x in (*row.inputs, row.target))
        return self.views.number * self._bytes_of_a_view(model, row)

    def _bytes_of_a_view(self, model: nn.Module, rows: Batch) -> int:
        try:
            return survey_like(model, rows.inputs, rows.synthetic_row, self.autocast, rows.names).bytes_per_row
        except (TapeUnavailable, *_FAILURES):
            return 3 * Layout.of(model).size * working_dtype(model).itemsize

    def _runs_alone(self, model: nn.Module, batch: Batch) -> bool:
        """Whether rows are run one at a time: they cannot be run together, or one row is work enough for a pass."""
        if why_alone(model) is not None:
            return True
        try:
            plan = survey_like(model, batch.inputs, batch.synthetic_row, self.autocast, batch.names)
        except (TapeUnavailable, *_FAILURES):
            return rows_are_large(Layout.of(model), working_dtype(model), device_of(model))
        return is_faster_alone(plan, device_of(model))

    def _taped(self, model: nn.Module, batch: Batch, seeds: Tensor) -> TapedGradients | None:
        """Gradients by the tape, or None if the model or a row needs the row-by-row method."""
        if len(seeds) == 0 or bool((batch.units.diff() < 0).any()):
            return None
        try:
            plan = self._survey(model, batch)
            tape, batch = without_failing_rows(
                lambda rows, seeds: record(model, self._row_loss(), rows.inputs, rows.target, seeds, plan), batch, seeds
            )
        except (TapeUnavailable, *_FAILURES):
            return None
        rows_of_units = torch.bincount(batch.units, minlength=batch.num_units)
        return TapedGradients.of(tape, tape.usable & batch.valid, rows_of_units.tolist(), Layout.of(model))

    def _survey(self, model: nn.Module, batch: Batch) -> Survey:
        """The survey of the model. Before its first use, the tape is compared with autograd for this model."""
        plan = survey_like(model, batch.inputs, batch.synthetic_row, self.autocast, batch.names)
        if not agreement.is_compared(model, plan):
            self._compare(model, batch)
            agreement.note_compared(model, plan)
        return plan

    def _compare(self, model: nn.Module, batch: Batch) -> None:
        """Stops using the tape for a model that it cannot record, or whose gradients it computes wrongly."""
        compared = self._agreement(model, batch)
        if compared is None:
            give_up(model, "the tape cannot record it")
            raise TapeUnavailable
        if compared.holds:
            return
        if _is_registered(compared.parameter, original(model)):
            differs = f"the gradient of {compared.parameter!r} by register_gradient differs from autograd's"
            raise UsageError(f"{differs} by {compared.error:.1e}: correct the registered function.")
        reason = f"the fast gradient of {compared.parameter!r} differs from autograd's by {compared.error:.1e}"
        give_up(model, reason)
        slower = "gradients are computed row by row, which is correct but slower"
        warnings.warn(f"{reason} on synthetic rows: {slower}. Please report the model.", SlowGradients, stacklevel=2)
        raise TapeUnavailable

    def _agreement(self, model: nn.Module, batch: Batch) -> Agreement | None:
        with torch.inference_mode(False):  # a copy made in inference mode could not be differentiated
            return agreement.agreement(model, self._row_loss(), _synthetic_like(batch))

    def _agreement_of_vmap(self, model: nn.Module, batch: Batch) -> Agreement:
        """Compares gradients by `vmap` with autograd's on synthetic rows. Raises the error of `vmap` if it fails."""
        with torch.inference_mode(False):
            compared = agreement.agreement_of_vmap(model, self._row_loss(), batch)
        if compared is None:
            self._gradients(model, batch, batch.units)
            raise RuntimeError("gradients of rows together fail on some passes")
        return compared

    def _row_by_row(self, model: nn.Module, batch: Batch, seeds: Tensor) -> Dense:
        """Gradients by `vmap`, of all rows together, or of halves if there is too little memory.

        An error that one row causes would reveal that it was drawn: an error is raised only if synthetic rows fail too.
        """
        layout = Layout.of(model)
        matrix = torch.zeros(len(seeds), layout.size, dtype=working_dtype(model), device=seeds.device)
        self._write_rows(matrix, model, batch, seeds)
        return Dense(_summed_by_unit(matrix, batch), layout)

    def _write_rows(self, matrix: Tensor, model: nn.Module, batch: Batch, seeds: Tensor) -> None:
        """Writes each row's gradient to `matrix`, which holds zeros. Rows that fail stay zero."""
        rows, half = len(seeds), len(seeds) // 2
        if rows == 0:
            return
        try:
            (gradients, usable), batch = without_failing_rows(
                lambda rows, seeds: self._gradients(model, rows, seeds), batch, seeds
            )
        except _FAILURES:
            self._refuse_if_synthetic_fails(model, batch.take(slice(0, 1)), seeds[:1])
            if rows == 1:  # this row fails and a synthetic one does not: it counts as absent
                return
            self._write_rows(matrix[:half], model, batch.take(slice(0, half)), seeds[:half])
            self._write_rows(matrix[half:], model, batch.take(slice(half, rows)), seeds[half:])
            return
        counted, zero = (usable & batch.valid)[:, None], matrix.new_zeros(())
        columns = torch.split(matrix, list(Layout.of(model).sizes), dim=1)
        for column, gradient in zip(columns, gradients, strict=True):
            torch.where(counted, gradient.reshape(column.shape), zero, out=column)  # a factor would give 0 * NaN = NaN

    def _gradients(self, model: nn.Module, batch: Batch, seeds: Tensor) -> tuple[list[Tensor], Tensor]:
        loss = self._row_loss()
        return gradients_of_rows(model, loss, batch.inputs, batch.target, seeds, self.autocast, batch.names)

    def _row_loss(self) -> RowLoss:
        return self.views.mean_of(RowLoss.of(self.loss))

    def _refuse_if_synthetic_fails(self, model: nn.Module, batch: Batch, seeds: Tensor) -> None:
        """Raises an error if the model fails on synthetic rows, too, or cannot be run on several of them."""
        try:
            self._gradients(model, batch.synthetic(), seeds)
        except (RuntimeError, IndexError) as error:
            if is_known_together(model):  # it changed what it does, and could keep what it reads of private rows
                reason = f"{why_not_together(error)}, which it did not do when it was checked"
                raise UsageError(
                    f"{layer_at_fault(model, error)} cannot be differentiated example by example: {reason}."
                ) from None  # the cause would have the message about the private row
            self._check_rows_together(model, _synthetic_like(batch))
            raise _RunsAlone from None


class _RunsAlone(Exception):
    """The model was found to run on one row at a time only, and that was noted."""


def _few(rows: Batch) -> Batch:
    """A few rows, one per unit."""
    return replace(rows.take(slice(0, _FEW)), units=torch.arange(_FEW, device=rows.units.device), num_units=_FEW)


def without_failing_rows(
    attempt: Callable[[Batch, Tensor], Result], batch: Batch, seeds: Tensor
) -> tuple[Result, Batch]:
    """`attempt(batch, seeds)` and the batch, in which rows that fail are replaced by synthetic rows that do not count.

    The shape of the batch stays, so that the other rows go through the same kernels whether or not one of them fails:
    products of other shapes would round all rows differently. If synthetic rows fail as well, the rows are not the
    cause, and the error is raised.
    """
    try:
        return attempt(batch, seeds), batch
    except _FAILURES:
        attempt(batch.synthetic(), seeds)
        failing = torch.cat(_failing(attempt, batch, seeds))
        if not bool(failing.any()):
            raise
    batch = batch.without(failing)
    return attempt(batch, seeds), batch


def _failing(attempt: Callable[[Batch, Tensor], object], batch: Batch, seeds: Tensor) -> list[Tensor]:
    """Masks of the rows that fail, found by bisection."""
    rows, half = len(seeds), len(seeds) // 2
    try:
        attempt(batch, seeds)
        return [torch.zeros_like(batch.valid)]
    except _FAILURES:
        if rows <= 1:
            return [torch.ones_like(batch.valid)]
    parts = slice(0, half), slice(half, rows)
    return [mask for part in parts for mask in _failing(attempt, batch.take(part), seeds[part])]


def _summed_by_unit(matrix: Tensor, batch: Batch) -> Tensor:
    if _one_row_per_unit(batch):
        return matrix
    return matrix.new_zeros(batch.num_units, matrix.shape[1]).index_add_(0, batch.units, matrix)


def _one_row_per_unit(batch: Batch) -> bool:
    return torch.equal(batch.units, torch.arange(batch.num_units, device=batch.units.device))


def _synthetic_like(batch: Batch) -> Batch:
    """Synthetic rows with the shapes and dtypes of a batch, one per unit."""
    rows = agreement.ROWS
    inputs = tuple(x.new_zeros(rows, *x.shape[1:]) for x in batch.inputs)
    target = batch.target.new_zeros(rows, *batch.target.shape[1:])
    units = torch.arange(rows, device=target.device)
    return Batch(inputs, target, torch.ones_like(units, dtype=torch.bool), units, rows, batch.names).synthetic()


def _is_registered(parameter: str, model: nn.Module) -> bool:
    """Whether the gradient of this parameter comes from a function registered for its layer."""
    layers = (name for name, module in model.named_modules() if is_registered(module))
    return any(parameter.startswith(f"{layer}." if layer else "") for layer in layers)


def _unusable(model: nn.Module, error: Exception) -> UsageError:
    reason = one_line(error)
    if "callback you passed in" in reason:  # the compiler of torch, which calls its parts by names that say nothing
        reason = "it has a part that torch compiles, such as torch.cond: write it as Python code"
    return UsageError(f"{layer_at_fault(model, error)} cannot be differentiated example by example: {reason}")
