"""The one object that changes while a script trains: which batch is out, and what has come of it.

A step goes: `issue` counts it and hands the batch out; `forward` runs the model on its rows; `backward` turns the
script's loss into what each row adds, clips it and adds it up; `release` adds the noise, once. Each is refused out of
order, so that what is released is the gradient of the batch that was drawn last, of all of it, and exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from sordino.contribution import LossGradient, without_failing_rows
from sordino.errors import UsageError
from sordino.gradients.row_loss import Loss
from sordino.gradients.surroundings import device_of, pinned
from sordino.gradients.tape import Unrecorded
from sordino.opacus.passes import ForwardPass, check_forward, forward_pass, of_nobody
from sordino.opacus.row_program import RowProgram
from sordino.opacus.script_loss import ScriptLoss
from sordino.opacus.traced import Column, Output, Traced
from sordino.records import Batch, Records
from sordino.run import Begun, PrivateRun
from sordino.states import BoundedSum, Layout, PerExample, Private

_SYNTHETIC_ROWS = 5


class Session:
    """A run that is driven by a script's own loop."""

    def __init__(
        self, run: PrivateRun, model: nn.Module, records: Records, criterion: Loss | None, loss_reduction: str
    ) -> None:
        self.run = run
        self._model, self._records = model, records
        self._criterion, self._loss_reduction = criterion, loss_reduction
        self._begun: Begun | None = None
        self._total: BoundedSum | None = None
        self._waiting: list[Tensor] = []  # parts of the batch that were not handed out yet
        self._part: _Part | None = None
        self._checked: set[Any] = set()

    def issue(self, largest_part: int | None = None) -> Iterator[list[Traced]]:
        """Begins a step, and hands out its batch in parts of at most `largest_part` rows. An empty one is a part."""
        if self._begun is not None:
            raise UsageError(
                "no step was taken on the batch before: call optimizer.step() for every batch, also for an empty one, "
                "because a step that is left out tells something about its batch."
            )
        self._begun, self._total = self.run.begin(), None
        begun = self._begun
        rows = len(begun.indices) if largest_part is None else largest_part
        self._waiting = list(torch.split(begun.indices, max(1, rows)))
        while self._waiting:
            if self._part is not None:
                raise UsageError("no step was taken on the part before: call optimizer.step() for every part.")
            batch, seeds = self.run.drawn(begun, self._waiting.pop(0))
            device = device_of(self._model)
            self._part = _Part(batch.to(device), seeds.to(device))
            yield self._part.handed_out(self.backward)

    def forward(self, *arguments: Any) -> Any:
        """The model's outputs for rows of the batch that is out."""
        part = self._part
        if part is None or not arguments or not all(isinstance(x, Traced) and part.made(x) for x in arguments):
            raise UsageError(
                "the model is trained on the tensors of the batch that the loader gave last, as positional arguments; "
                "run it on others under torch.no_grad()."
            )
        if Layout.of(self._model) != self.run.layout:
            raise UsageError("other parameters are trainable now than when the model was made private.")
        programs = [RowProgram.of(x.node) for x in arguments]
        if not all(isinstance(leaf, Column) for program in programs for leaf in program.leaves):
            raise UsageError("outputs of the model cannot be its inputs: make both passes in one module.")
        batch = replace(part.batch, inputs=tuple(self._rows_of(program, part.batch) for program in programs))
        shapes = [(tuple(x.shape[1:]), x.dtype) for x in batch.inputs]
        if self._is_new("model", repr((shapes, [module.training for module in self._model.modules()]))):
            check_forward(self._model, batch)
        return part.add(forward_pass(self._model, batch, part.seeds), programs, self.backward)

    def backward(self, loss: Traced) -> None:
        """Adds what each row of the part contributes, by the loss that the script computed."""
        part = self._part
        if part is None or self._begun is None or not part.made(loss):
            raise UsageError(
                "this loss is not of the batch that the loader gave last: call backward() on each batch's own loss, "
                "before the next batch is drawn."
            )
        if part.is_added:
            raise UsageError("backward() was called before on this batch: add the losses up, and call it once.")
        program = RowProgram.of(loss.node)
        passes = {leaf.origin for leaf in program.leaves if isinstance(leaf, Output)}
        if len(passes) != 1:
            raise UsageError(f"a loss comes from one forward pass of the private model, got {len(passes)}.")
        passed, inputs = part.passes[passes.pop()]
        script_loss = ScriptLoss.of(program, self._criterion, target=len(part.batch.inputs))
        if self._is_new("loss", (program.looks(), tuple(p.looks() for p in inputs))):
            with pinned(self._model):
                self._check_loss(script_loss, inputs)
        self._add(self.run.bounded(self._begun, self._contributions(script_loss, passed, part)))
        part.is_added = True

    def release(self) -> Private | None:
        """The private gradient of the step, or None as long as parts of its batch are to come."""
        part = self._part
        if part is None or self._begun is None:
            raise UsageError("no batch is out: take one step for each batch that the loader gives, after backward().")
        if not part.is_added and len(part.seeds):
            raise UsageError("backward() was not called on this batch: a step needs its gradient.")
        self._part = None
        if self._waiting:
            return None
        begun, self._begun = self._begun, None
        if self._total is None:
            self._total = self.run.bounded(begun, of_nobody(self._model))
        return self.run.finish(begun, self._total)

    def _add(self, part: BoundedSum) -> None:
        if self._total is None:
            self._total = part
        else:
            self._total += part

    def __deepcopy__(self, memo: object) -> Session:
        """The same session: a second one would draw the same noise for other sums."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError("what is trained privately cannot be pickled with its data and key: save model.state_dict().")

    def _rows_of(self, program: RowProgram, batch: Batch) -> Tensor:
        """What the script made of the batch before the model saw it."""
        if program.is_leaf:
            return self._columns_of(program, batch)[0]
        with pinned(self._model):
            if self._is_new("inputs", program.looks()):
                program.check_rows(self._columns_of(program, self._synthetic()))
            return program.of_rows(self._columns_of(program, batch)).flatten(0, 1)

    def _contributions(self, loss: ScriptLoss, passed: ForwardPass, part: _Part) -> PerExample:
        """A row that the loss fails on is absent, and changes nothing about how the others are computed."""
        column = _columns(part.batch)[loss.column]
        try:
            try:
                return passed.contributions(lambda outputs: loss.of_rows(outputs, passed.spec, column))
            except (RuntimeError, IndexError):
                rows = self._without_failing_losses(loss, passed, column, part.seeds)
                counted = replace(passed, batch=replace(passed.batch, valid=rows.valid))
                return counted.contributions(lambda outputs: loss.of_rows(outputs, passed.spec, rows.target))
        except (Unrecorded, RuntimeError, IndexError):  # row by row
            return LossGradient(loss).of(self._model, replace(passed.batch, target=column), part.seeds)

    def _without_failing_losses(self, loss: ScriptLoss, passed: ForwardPass, column: Tensor, seeds: Tensor) -> Batch:
        """The outputs with a column of the batch, made up where the loss fails."""
        rows = replace(passed.batch, inputs=tuple(passed.outputs), target=column)
        with pinned(self._model):
            return without_failing_rows(
                lambda some, _: loss.of_rows(list(some.inputs), passed.spec, some.target), rows, seeds
            )[1]

    def _check_loss(self, loss: ScriptLoss, inputs: list[RowProgram]) -> None:
        synthetic = self._synthetic()
        rows = tuple(program.of_batch(self._columns_of(program, synthetic)) for program in inputs)
        batch = replace(synthetic, inputs=rows)
        passed = forward_pass(self._model, batch, torch.arange(_SYNTHETIC_ROWS, device=batch.units.device))
        loss.check(passed.outputs, passed.spec, _columns(synthetic)[loss.column], self._loss_reduction)

    def _synthetic(self) -> Batch:
        return self._records.template(_SYNTHETIC_ROWS).to(device_of(self._model))

    def _columns_of(self, program: RowProgram, batch: Batch) -> list[Tensor]:
        return [_columns(batch)[leaf.place] for leaf in program.leaves]

    def _is_new(self, *what: Any) -> bool:
        known = what in self._checked
        self._checked.add(what)
        return not known


class _Part:
    """Rows that are out. The script has copies: what it does to them cannot change what the kernel computes."""

    def __init__(self, batch: Batch, seeds: Tensor) -> None:
        self.batch, self.seeds = batch, seeds
        self.passes: dict[object, tuple[ForwardPass, list[RowProgram]]] = {}
        self.is_added = False
        self._issued = object()

    def handed_out(self, on_backward: Callable[[Traced], None]) -> list[Traced]:
        columns = enumerate(_columns(self.batch))
        return [Traced.of(x.clone(), Column(self._issued, place), on_backward) for place, x in columns]

    def add(self, passed: ForwardPass, inputs: list[RowProgram], on_backward: Callable[[Traced], None]) -> Any:
        made = object()
        self.passes[made] = passed, inputs
        outputs = enumerate(passed.outputs)
        return passed.spec.unflatten([Traced.of(x, Output(made, place), on_backward) for place, x in outputs])

    def made(self, traced: Traced) -> bool:
        """Whether a tensor was computed from these rows and from no others."""
        origins = {leaf.origin for leaf in RowProgram.of(traced.node).leaves}
        return bool(origins) and origins <= {self._issued, *self.passes}


def _columns(batch: Batch) -> tuple[Tensor, ...]:
    return (*batch.inputs, batch.target)
