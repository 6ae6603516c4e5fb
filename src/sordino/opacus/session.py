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
from sordino.opacus.batch_of_one import Habits
from sordino.opacus.collated import Form
from sordino.opacus.constants import appearance, contents, is_number
from sordino.opacus.nodes import Column, Departure, Node, Output, Untraceable
from sordino.opacus.parts import Part, Passed, ShapeGroup, columns_of, without_sizes
from sordino.opacus.passes import (
    ForwardPass,
    check_forward,
    forward_pass,
    habits_of,
    names_of_arguments,
    no_contributions,
)
from sordino.opacus.row_program import RowProgram, ScriptLoss
from sordino.opacus.traced import Trace, TracedTensor, plain

_SYNTHETIC_ROWS = 5
_ROUNDED_ALIKE = "the rounding of an example's gradient does not depend on which others have its sizes"


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
        self._part: Part | None = None
        self._checked: set[Any] = set()
        self._form = Form.of(records)
        self._trace = Trace(self.backward, self._is_of_the_model, self._form.is_ragged)
        self._habits = Habits(squeezes=False, has_other_outputs=False)
        self._known_outputs: dict[Any, ForwardPass] = {}  # of no rows, by call of the model
        self._constants: _Constants | None = None  # those of the last step, which depend on no batch
        self._model_at_first = tuple(self._model_constants())

    @property
    def num_rows(self) -> int:
        """The public number of rows of the dataset."""
        return self._records.num_units

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee beside those of the run."""
        return (_ROUNDED_ALIKE,) if self._form.is_ragged else ()

    def issue(self, largest_part: int | None = None) -> Iterator[Any]:
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
            self._part = Part(batch.to(device), seeds.to(device), self._form)
            yield self._part.issue(self._trace)

    def made(self, value: Any) -> bool:
        """Whether a value is a tensor of a batch of this session."""
        return isinstance(value, TracedTensor) and value.history is self._trace

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the model's outputs for rows of the current batch."""
        part, arguments = self._part, (*args, *kwargs.values())
        if part is None or not arguments or not all(isinstance(x, TracedTensor) and part.made(x) for x in arguments):
            raise UsageError(
                "in training, the model takes the tensors of the loader's last batch, and nothing else; use "
                f"torch.no_grad() for other inputs{_why_untraceable(arguments)}."
            )
        if Layout.of(self._model) != self.run.layout:
            raise UsageError("the trainable parameters have changed since the model was made private.")
        if any(isinstance(x, TracedTensor) for x in (*self._model.parameters(), *self._model.buffers())):
            raise UsageError("a buffer of the model must not be a value of a batch, but the script assigned one.")
        programs = [RowProgram.of(_node(x)) for x in arguments]
        if not all(isinstance(leaf, Column) for program in programs for leaf in program.leaves):
            raise UsageError("outputs of the model cannot be its inputs: combine both passes in one module.")
        names = names_of_arguments(self._model, args, kwargs)
        public = self._checked_call(programs, names)
        groups = [(group, self._passed(group, programs, names, public)) for group in part.groups]
        return part.add(Passed(groups, programs, names, tuple(self._model_constants())), public, self._trace)

    def synthetic_like(self, value: Any) -> Any:
        """The computation on synthetic rows instead of the batch, if a value is a tensor of the batch."""
        if not isinstance(value, TracedTensor):
            return value
        program = RowProgram.of(_node(value))
        return program.of_batch(self._columns_of(program, self._synthetic()))

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
        passed = part.passes[passes.pop()]
        fingerprints = program.fingerprint(), tuple(p.fingerprint() for p in passed.inputs)
        constants = _Constants(fingerprints, passed.model_constants)
        self._refuse_constants_of_batches([program, *passed.inputs], constants, len(part.seeds))
        script_loss = ScriptLoss.of(program, self._criterion, target=len(part.batch.inputs))
        # A criterion may have changed since the last check: it is checked again as soon as it could depend on a batch.
        if self._is_new("loss", fingerprints) or (self._criterion is not None and self._trace.left):
            with pinned(self._model):
                self._check_loss(script_loss, passed)
        for group, one in passed.groups:
            self._add(self.run.bounded(self._begun, self._contributions(script_loss, one, group)))
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

    def _checked_call(self, programs: list[RowProgram], names: tuple[str, ...]) -> ForwardPass:
        """The forward pass of no rows, after a check of the model on synthetic rows when it is first called so."""
        modes = [module.training for module in self._model.modules()]
        called = repr(([program.fingerprint() for program in programs], names, modes))
        if called not in self._known_outputs:
            for program in programs:
                if not program.is_leaf and self._is_new("inputs", program.fingerprint()):
                    with pinned(self._model):
                        program.check_rows(self._columns_of(program, self._synthetic()))
            public = self._called(programs, names, self._synthetic())
            self._habits = habits_of(self._model, public)
            with self._habits.treated(self._model):
                check_forward(self._model, public)
                self._known_outputs[called] = forward_pass(self._model, public.take(slice(0, 0)), public.units[:0])
            if self._form.is_ragged:
                self._check_other_sizes(programs, names, self._known_outputs[called])
        return self._known_outputs[called]

    def _check_other_sizes(self, programs: list[RowProgram], names: tuple[str, ...], public: ForwardPass) -> None:
        """Raises an error if shapes of outputs depend on the sizes of rows. Uses synthetic rows only."""
        larger = self._called(programs, names, self._form.larger(self._synthetic()))
        with self._habits.treated(self._model):
            outputs = forward_pass(self._model, larger, larger.units).outputs
        if [x.shape[1:] for x in outputs] != [x.shape[1:] for x in public.outputs]:
            raise UsageError(
                "rows have sizes of their own, and so would the model's outputs: let collate_fn or the dataset pad "
                "each row to one size."
            )

    def _passed(
        self, group: ShapeGroup, programs: list[RowProgram], names: tuple[str, ...], public: ForwardPass
    ) -> ForwardPass | None:
        """The forward pass of a group, or None if the model fails on rows of these sizes: they count as absent."""
        try:
            with self._habits.treated(self._model):
                passed = forward_pass(self._model, self._called(programs, names, group.batch), group.seeds)
        except (UsageError, RuntimeError, IndexError):
            if not self._form.is_ragged:
                raise
            return None
        same = [x.shape[1:] for x in passed.outputs] == [x.shape[1:] for x in public.outputs]
        return passed if same else None

    def _called(self, programs: list[RowProgram], names: tuple[str, ...], batch: Batch) -> Batch:
        """The batch with the model's inputs: the script's preprocessing, applied to each row."""
        inputs = []
        for program in programs:
            columns = self._columns_of(program, batch)
            with pinned(self._model):
                inputs.append(columns[0] if program.is_leaf else program.of_rows(columns).flatten(0, 1))
        return replace(batch, inputs=tuple(inputs), names=names)

    def _contributions(self, loss: ScriptLoss, passed: ForwardPass | None, group: ShapeGroup) -> PerExample:
        """The contributions of the rows. A row on which the loss fails is ignored and does not affect the others."""
        if passed is None:
            return no_contributions(self._model)
        column = columns_of(group.batch)[loss.column]
        try:
            try:
                return passed.contributions(lambda outputs: loss.of_rows(outputs, passed.spec, column))
            except (RuntimeError, IndexError):
                rows = self._without_failing_losses(loss, passed, column, group.seeds)
                counted = replace(passed, batch=replace(passed.batch, valid=rows.valid))
                return counted.contributions(lambda outputs: loss.of_rows(outputs, passed.spec, rows.target))
        except (TapeUnavailable, RuntimeError, IndexError):  # row by row
            batch = replace(passed.batch, target=column)
        try:
            with self._habits.treated(self._model):
                return LossGradient(loss).of(self._model, batch, group.seeds)
        except UsageError:
            if not self._form.is_ragged:
                raise
            return no_contributions(self._model)  # the model fails on rows of these sizes

    def _without_failing_losses(self, loss: ScriptLoss, passed: ForwardPass, column: Tensor, seeds: Tensor) -> Batch:
        """The outputs and a column of the batch, with synthetic values in rows on which the loss fails."""
        rows = replace(passed.batch, inputs=tuple(passed.outputs), target=column)
        with pinned(self._model):
            return without_failing_rows(
                lambda some, _: loss.of_rows(list(some.inputs), passed.spec, some.target), rows, seeds
            )[1]

    def _check_loss(self, loss: ScriptLoss, passed: Passed) -> None:
        synthetic = self._synthetic()
        rows = tuple(program.of_batch(self._columns_of(program, synthetic)) for program in passed.inputs)
        batch = replace(synthetic, inputs=rows, names=passed.names)
        with self._habits.treated(self._model):
            one = forward_pass(self._model, batch, torch.arange(_SYNTHETIC_ROWS, device=batch.units.device))
        loss.check(one.outputs, one.spec, columns_of(synthetic)[loss.column], self._loss_reduction)

    def _synthetic(self) -> Batch:
        batch = self._records.template(_SYNTHETIC_ROWS).to(device_of(self._model))
        return without_sizes(batch, self._form)

    def _columns_of(self, program: RowProgram, batch: Batch) -> list[Tensor]:
        return [columns_of(batch)[leaf.place] for leaf in program.leaves]

    def _is_new(self, *what: Any) -> bool:
        known = what in self._checked
        self._checked.add(what)
        return not known


@dataclass(frozen=True)
class _Constants:
    """Everything that a step computes with except its rows and trained parameters: programs and model constants."""

    of_programs: Any
    of_model: Any


def _node(traced: TracedTensor) -> Node:
    """The node of a tensor for which `made` is true."""
    assert not isinstance(traced.node, Untraceable)
    return traced.node


def _why_untraceable(values: Iterable[Any]) -> str:
    reasons = [x.node.why for x in values if isinstance(x, TracedTensor) and isinstance(x.node, Untraceable)]
    return f"; here {reasons[0]} is used, which cannot be computed from a single row" if reasons else ""
