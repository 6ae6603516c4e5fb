"""The one object that changes while a script trains: which batch is out, and what has come of it.

A step goes: `issue` counts it and hands the batch out; `forward` runs the model on its rows; `backward` turns the
script's loss into what each row adds, clips it and adds it up; `release` adds the noise, once. Each is refused out of
order, so that what is released is the gradient of the batch that was drawn last, of all of it, and exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sordino.errors import UsageError
from sordino.gradients.row_loss import Loss
from sordino.gradients.tape import TapeUnavailable
from sordino.gradients.torch_state import OF_EVERY_MODULE, attributes_kept, device_of, pinned
from sordino.kernel.contribution import LossGradient, without_failing_rows
from sordino.kernel.records import Batch, Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private
from sordino.kernel.step import BegunStep
from sordino.opacus.constants import appearance, contents, is_number
from sordino.opacus.passes import ForwardPass, check_forward, forward_pass, of_nobody
from sordino.opacus.row_program import RowProgram, ScriptLoss
from sordino.opacus.traced import Column, Departure, IssuedBatch, Lost, Node, Output, Trace, TracedTensor, plain

_SYNTHETIC_ROWS = 5


class Session:
    """A run that is driven by a script's own loop."""

    def __init__(
        self, run: PrivateRun, model: nn.Module, records: Records, criterion: Loss | None, loss_reduction: str
    ) -> None:
        self.run = run
        self._model, self._records = model, records
        self._criterion, self._loss_reduction = criterion, loss_reduction
        self._begun: BegunStep | None = None
        self._total: BoundedSum | None = None
        self._waiting: list[Tensor] = []  # parts of the batch that were not handed out yet
        self._part: _Part | None = None
        self._checked: set[Any] = set()
        self._trace = Trace(self.backward, self._is_of_the_model)
        self._constants: _Constants | None = None  # of the last step, which depend on no batch
        self._model_at_first = tuple(self._model_constants())

    def issue(self, largest_part: int | None = None) -> Iterator[list[TracedTensor]]:
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
            yield self._part.handed_out(self._trace)

    def forward(self, *arguments: Any) -> Any:
        """The model's outputs for rows of the batch that is out."""
        part = self._part
        if part is None or not arguments or not all(isinstance(x, TracedTensor) and part.made(x) for x in arguments):
            raise UsageError(
                "the model is trained on the tensors of the batch that the loader gave last, as positional arguments; "
                f"run it on others under torch.no_grad(){_what_is_lost(arguments)}."
            )
        if Layout.of(self._model) != self.run.layout:
            raise UsageError("other parameters are trainable now than when the model was made private.")
        if any(isinstance(x, TracedTensor) for x in (*self._model.parameters(), *self._model.buffers())):
            raise UsageError("a buffer of the model is a value of a batch, which the script wrote there.")
        programs = [RowProgram.of(_node(x)) for x in arguments]
        if not all(isinstance(leaf, Column) for program in programs for leaf in program.leaves):
            raise UsageError("outputs of the model cannot be its inputs: make both passes in one module.")
        batch = replace(part.batch, inputs=tuple(self._rows_of(program, part.batch) for program in programs))
        shapes = [(tuple(x.shape[1:]), x.dtype) for x in batch.inputs]
        if self._is_new("model", repr((shapes, [module.training for module in self._model.modules()]))):
            check_forward(self._model, batch)
        passed = forward_pass(self._model, batch, part.seeds)
        return part.add(passed, programs, tuple(self._model_constants()), self._trace)

    def look(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for a batch without a way back to the parameters. Nothing of it stays in the model."""
        with attributes_kept(self._model):
            outputs = self._model(*tree_map(plain, args), **tree_map(plain, kwargs))
        lost = Lost.here("an output of the model under torch.no_grad()")
        return tree_map(lambda x: TracedTensor.of(x, lost, self._trace) if isinstance(x, Tensor) else x, outputs)

    def backward(self, loss: TracedTensor) -> None:
        """Adds what each row of the part contributes, by the loss that the script computed."""
        part = self._part
        if part is None or self._begun is None or not part.made(loss):
            raise UsageError(
                "this loss is not of the batch that the loader gave last: call backward() on each batch's own loss, "
                f"before the next batch is drawn{_what_is_lost([loss])}."
            )
        if part.is_added:
            raise UsageError("backward() was called before on this batch: add the losses up, and call it once.")
        program = RowProgram.of(_node(loss))
        passes = {leaf.origin for leaf in program.leaves if isinstance(leaf, Output)}
        if len(passes) != 1:
            raise UsageError(f"a loss comes from one forward pass of the private model, got {len(passes)}.")
        passed, inputs, model_constants = part.passes[passes.pop()]
        looks = program.looks(), tuple(p.looks() for p in inputs)
        constants = _Constants(looks, model_constants)
        self._refuse_constants_of_batches([program, *inputs], constants, len(part.seeds))
        script_loss = ScriptLoss.of(program, self._criterion, target=len(part.batch.inputs))
        # A criterion may have changed since it was compared: it is compared again once it could depend on a batch.
        if self._is_new("loss", looks) or (self._criterion is not None and self._trace.left):
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
        part.issued.is_over, self._part = True, None
        if self._waiting:
            return None
        begun, self._begun = self._begun, None
        if self._total is None:
            self._total = self.run.bounded(begun, of_nobody(self._model))
        return self.run.finish(begun, self._total)

    def _refuse_constants_of_batches(self, programs: list[RowProgram], constants: _Constants, rows: int) -> None:
        """Refuses a step in which a number that was computed from a batch may be a constant of every row.

        What was written down before anything had left the trace is public. Whatever is written down later must be the
        same, as far as it could depend on what left.
        """
        left = frozenset[Departure]().union(*(program.after for program in programs))
        if left and self._constants is None:
            self._refuse_what_left_before_the_first_loss(left, programs, constants, rows)
        elif left and constants != self._constants:
            raise UsageError(
                "the loss has other functions or constants than in the step before, and they may depend on values of "
                f"a batch, which left for Python in {self._trace.lines(*Departure)}: compute with tensors of the "
                "batch, and declare what is public by sordino.opacus.public(value)."
            )
        self._constants = constants

    def _refuse_what_left_before_the_first_loss(
        self, left: frozenset[Departure], programs: list[RowProgram], constants: _Constants, rows: int
    ) -> None:
        given = [value for program in programs for value in program.given()]
        where = self._trace.lines(*left)
        if Departure.DECISION in left:
            raise UsageError(
                f"the script decides by values of the batch in {where}, before it has computed the loss of its first "
                "step: ask after that, or use torch.where."
            )
        if Departure.NUMBER in left and (given or constants.of_model != self._model_at_first):
            raise UsageError(
                f"values of the batch left for Python in {where}, before the script had computed the loss of its first "
                "step, and may be among its constants: compute the loss first, and with tensors of the batch."
            )
        if Departure.SIZE in left and rows > 1 and any(x in (rows, 1 / rows) for x in given if is_number(x)):
            raise UsageError(
                f"the loss is computed with the number of rows that were drawn, which is private, from {where}: divide "
                "by the batch size that was asked for."
            )

    def _model_constants(self) -> Iterator[tuple[str, Any]]:
        """What the model computes with and is not trained. A whole number or a truth may well be a count or a mode."""
        for name, x in (*self._model.named_parameters(), *self._model.named_buffers()):
            if not x.requires_grad:
                yield name, contents(x)
        for path, module in self._model.named_modules():
            for name in sorted(vars(module).keys() - OF_EVERY_MODULE):
                value = vars(module)[name]
                if isinstance(value, Tensor):
                    yield f"{path}.{name}", contents(value)
                elif isinstance(value, (float, complex, np.floating)):
                    yield f"{path}.{name}", appearance(value)

    def _is_of_the_model(self, tensor: Tensor) -> bool:
        tensors = (*self._model.parameters(), *self._model.buffers())
        return tensor.untyped_storage().data_ptr() in {x.untyped_storage().data_ptr() for x in tensors if x.numel()}

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
        except (TapeUnavailable, RuntimeError, IndexError):  # row by row
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


@dataclass(frozen=True)
class _Constants:
    """All that a step computes with beside its rows and what is trained: functions and constants, and the model's."""

    of_programs: Any
    of_model: Any


class _Part:
    """Rows that are out. The script has copies: what it does to them cannot change what the kernel computes."""

    def __init__(self, batch: Batch, seeds: Tensor) -> None:
        self.batch, self.seeds = batch, seeds
        self.passes: dict[object, tuple[ForwardPass, list[RowProgram], Any]] = {}
        self.is_added = False
        self.issued = IssuedBatch()

    def handed_out(self, trace: Trace) -> list[TracedTensor]:
        columns = enumerate(_columns(self.batch))
        return [TracedTensor.of(x.clone(), Column(self.issued, place, x.to("meta")), trace) for place, x in columns]

    def add(self, passed: ForwardPass, inputs: list[RowProgram], model_constants: Any, trace: Trace) -> Any:
        made = object()
        self.passes[made] = passed, inputs, model_constants
        outputs = enumerate(passed.outputs)
        return passed.spec.unflatten(
            [TracedTensor.of(x, Output(self.issued, place, x.to("meta"), made), trace) for place, x in outputs]
        )

    def made(self, traced: TracedTensor) -> bool:
        """Whether a tensor was computed from these rows and from no others."""
        return not isinstance(traced.node, Lost) and traced.node.batch is self.issued


def _node(traced: TracedTensor) -> Node:
    """The node of a tensor of which `made` is true."""
    assert not isinstance(traced.node, Lost)
    return traced.node


def _what_is_lost(values: Iterable[Any]) -> str:
    found = [x.node.why for x in values if isinstance(x, TracedTensor) and isinstance(x.node, Lost)]
    return f"; here {found[0]} is used, which no row can compute by itself" if found else ""


def _columns(batch: Batch) -> tuple[Tensor, ...]:
    return (*batch.inputs, batch.target)
