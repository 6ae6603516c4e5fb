"""`Session`: the state of a run that a script's own loop drives.

In each step `issue` counts the step and gives the batch to the script; `forward` runs the model on its rows; `backward`
computes the gradient of each row from the script's loss, clips it and sums; `release` adds the noise, once. Calls out
of order raise an error, so a release is the gradient of the last batch, of the whole batch, and happens once.
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
from sordino.opacus.passes import ForwardPass, check_forward, forward_pass, no_contributions
from sordino.opacus.row_program import RowProgram, ScriptLoss
from sordino.opacus.traced import Column, Departure, IssuedBatch, Node, Output, Trace, TracedTensor, Untraceable, plain

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
        self._waiting: list[Tensor] = []  # parts of the batch that have not been issued yet
        self._part: _Part | None = None
        self._checked: set[Any] = set()
        self._trace = Trace(self.backward, self._is_of_the_model)
        self._constants: _Constants | None = None  # those of the last step, which depend on no batch
        self._model_at_first = tuple(self._model_constants())

    def issue(self, largest_part: int | None = None) -> Iterator[list[TracedTensor]]:
        """Begins a step and yields its batch in parts of at most `largest_part` rows. An empty batch is one part."""
        if self._begun is not None:
            raise UsageError(
                "no step was taken on the previous batch: call optimizer.step() for every batch, even an empty one, "
                "because a skipped step reveals information about its batch."
            )
        self._begun, self._total = self.run.begin(), None
        begun = self._begun
        rows = len(begun.indices) if largest_part is None else largest_part
        self._waiting = list(torch.split(begun.indices, max(1, rows)))
        while self._waiting:
            if self._part is not None:
                raise UsageError("no step was taken on the previous part: call optimizer.step() for every part.")
            batch, seeds = self.run.drawn(begun, self._waiting.pop(0))
            device = device_of(self._model)
            self._part = _Part(batch.to(device), seeds.to(device))
            yield self._part.issue(self._trace)

    def forward(self, *arguments: Any) -> Any:
        """Returns the model's outputs for rows of the current batch."""
        part = self._part
        if part is None or not arguments or not all(isinstance(x, TracedTensor) and part.made(x) for x in arguments):
            raise UsageError(
                "in training, the model takes the tensors of the loader's last batch, as positional arguments; use "
                f"torch.no_grad() for other inputs{_why_untraceable(arguments)}."
            )
        if Layout.of(self._model) != self.run.layout:
            raise UsageError("the trainable parameters have changed since the model was made private.")
        if any(isinstance(x, TracedTensor) for x in (*self._model.parameters(), *self._model.buffers())):
            raise UsageError("a buffer of the model must not be a value of a batch, but the script assigned one.")
        programs = [RowProgram.of(_node(x)) for x in arguments]
        if not all(isinstance(leaf, Column) for program in programs for leaf in program.leaves):
            raise UsageError("outputs of the model cannot be its inputs: combine both passes in one module.")
        batch = replace(part.batch, inputs=tuple(self._rows_of(program, part.batch) for program in programs))
        shapes = [(tuple(x.shape[1:]), x.dtype) for x in batch.inputs]
        if self._is_new("model", repr((shapes, [module.training for module in self._model.modules()]))):
            check_forward(self._model, batch)
        passed = forward_pass(self._model, batch, part.seeds)
        return part.add(passed, programs, tuple(self._model_constants()), self._trace)

    def look(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the model's outputs for a batch without gradients. The model's attributes are restored afterwards."""
        with attributes_kept(self._model):
            outputs = self._model(*tree_map(plain, args), **tree_map(plain, kwargs))
        node = Untraceable.here("an output of the model under torch.no_grad()")
        return tree_map(lambda x: TracedTensor.of(x, node, self._trace) if isinstance(x, Tensor) else x, outputs)

    def backward(self, loss: TracedTensor) -> None:
        """Adds the contributions of the rows of the current part, from the loss that the script computed."""
        part = self._part
        if part is None or self._begun is None or not part.made(loss):
            raise UsageError(
                "the loss must be computed from the loader's last batch: call backward() on each batch's own loss, "
                f"before the next batch is drawn{_why_untraceable([loss])}."
            )
        if part.is_added:
            raise UsageError("backward() was already called on this batch: sum the losses, and call it once.")
        program = RowProgram.of(_node(loss))
        passes = {leaf.origin for leaf in program.leaves if isinstance(leaf, Output)}
        if len(passes) != 1:
            raise UsageError(f"a loss must come from one forward pass of the private model, got {len(passes)}.")
        passed, inputs, model_constants = part.passes[passes.pop()]
        fingerprints = program.fingerprint(), tuple(p.fingerprint() for p in inputs)
        constants = _Constants(fingerprints, model_constants)
        self._refuse_constants_of_batches([program, *inputs], constants, len(part.seeds))
        script_loss = ScriptLoss.of(program, self._criterion, target=len(part.batch.inputs))
        # A criterion may have changed since the last check: it is checked again as soon as it could depend on a batch.
        if self._is_new("loss", fingerprints) or (self._criterion is not None and self._trace.left):
            with pinned(self._model):
                self._check_loss(script_loss, inputs)
        self._add(self.run.bounded(self._begun, self._contributions(script_loss, passed, part)))
        part.is_added = True

    def release(self) -> Private | None:
        """Returns the private gradient of the step, or None while parts of its batch are missing."""
        part = self._part
        if part is None or self._begun is None:
            raise UsageError("there is no current batch: take one step per batch of the loader, after backward().")
        if not part.is_added and len(part.seeds):
            raise UsageError("backward() was not called on this batch: call it before optimizer.step().")
        part.issued.is_over, self._part = True, None
        if self._waiting:
            return None
        begun, self._begun = self._begun, None
        if self._total is None:
            self._total = self.run.bounded(begun, no_contributions(self._model))
        return self.run.finish(begun, self._total)

    def _refuse_constants_of_batches(self, programs: list[RowProgram], constants: _Constants, rows: int) -> None:
        """Raises an error if a constant of the loss may have been computed from a batch.

        Constants that were recorded before any value of a batch left the trace are public. Constants that could depend
        on such a value must equal those of the previous step.
        """
        left = frozenset[Departure]().union(*(program.after for program in programs))
        if left and self._constants is None:
            self._refuse_departures_before_first_loss(left, programs, constants, rows)
        elif left and constants != self._constants:
            raise UsageError(
                "the functions or constants of the loss have changed since the previous step, and may depend on values "
                f"of a batch, which were read as Python values in {self._trace.lines(*Departure)}: compute with "
                "tensors of the batch, and declare public constants with sordino.opacus.public(value)."
            )
        self._constants = constants

    def _refuse_departures_before_first_loss(
        self, left: frozenset[Departure], programs: list[RowProgram], constants: _Constants, rows: int
    ) -> None:
        script_constants = [value for program in programs for value in program.given()]
        where = self._trace.lines(*left)
        if Departure.DECISION in left:
            raise UsageError(
                f"the script branches on values of the batch in {where}, before it has computed the loss of its first "
                "step: branch after that, or use torch.where."
            )
        if Departure.NUMBER in left and (script_constants or constants.of_model != self._model_at_first):
            raise UsageError(
                f"values of the batch were read as Python values in {where}, before the script had computed the loss "
                "of its first step, and may be among its constants: compute the loss first, with tensors of the batch."
            )
        if Departure.SIZE in left and rows > 1 and any(x in (rows, 1 / rows) for x in script_constants if is_number(x)):
            raise UsageError(
                f"the loss uses the number of sampled rows, which is private, from {where}: divide by the configured "
                "batch size."
            )

    def _model_constants(self) -> Iterator[tuple[str, Any]]:
        """Yields the values that the model computes with and does not train, by name.

        Integer and Boolean attributes are left out, because they are often counters or modes.
        """
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
        """Returns the session itself: a copy would draw the same noise for other sums."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError("a private model cannot be pickled, because it has data and key: save model.state_dict().")

    def _rows_of(self, program: RowProgram, batch: Batch) -> Tensor:
        """The model's inputs: the script's preprocessing, applied to each row."""
        if program.is_leaf:
            return self._columns_of(program, batch)[0]
        with pinned(self._model):
            if self._is_new("inputs", program.fingerprint()):
                program.check_rows(self._columns_of(program, self._synthetic()))
            return program.of_rows(self._columns_of(program, batch)).flatten(0, 1)

    def _contributions(self, loss: ScriptLoss, passed: ForwardPass, part: _Part) -> PerExample:
        """The contributions of the rows. A row on which the loss fails is ignored and does not affect the others."""
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
        """The outputs and a column of the batch, with synthetic values in rows on which the loss fails."""
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
    """Everything that a step computes with except its rows and trained parameters: programs and model constants."""

    of_programs: Any
    of_model: Any


class _Part:
    """The rows of the current part of a batch. The script gets copies, so it cannot change what the kernel uses."""

    def __init__(self, batch: Batch, seeds: Tensor) -> None:
        self.batch, self.seeds = batch, seeds
        self.passes: dict[object, tuple[ForwardPass, list[RowProgram], Any]] = {}
        self.is_added = False
        self.issued = IssuedBatch()

    def issue(self, trace: Trace) -> list[TracedTensor]:
        columns = enumerate(_columns(self.batch))
        return [TracedTensor.of(x.clone(), Column(self.issued, place, x.to("meta")), trace) for place, x in columns]

    def add(self, passed: ForwardPass, inputs: list[RowProgram], model_constants: Any, trace: Trace) -> Any:
        origin = object()
        self.passes[origin] = passed, inputs, model_constants
        outputs = enumerate(passed.outputs)
        return passed.spec.unflatten(
            [TracedTensor.of(x, Output(self.issued, place, x.to("meta"), origin), trace) for place, x in outputs]
        )

    def made(self, traced: TracedTensor) -> bool:
        """Whether a tensor was computed from these rows and from no others."""
        return not isinstance(traced.node, Untraceable) and traced.node.batch is self.issued


def _node(traced: TracedTensor) -> Node:
    """The node of a tensor for which `made` is true."""
    assert not isinstance(traced.node, Untraceable)
    return traced.node


def _why_untraceable(values: Iterable[Any]) -> str:
    reasons = [x.node.why for x in values if isinstance(x, TracedTensor) and isinstance(x.node, Untraceable)]
    return f"; here {reasons[0]} is used, which cannot be computed from a single row" if reasons else ""


def _columns(batch: Batch) -> tuple[Tensor, ...]:
    return (*batch.inputs, batch.target)
