"""The tape: one forward and one backward pass that record, per row, inputs and output gradients of trained operations.

A zero that belongs to the row is added to each output of a recorded operation. The gradient by that zero is the
gradient by the output, and nothing else is differentiated: neither the gradient of a weight is formed nor that of the
first input. The rule of the operation computes per-example gradients from the recorded pair, in `taped`.

Guarantee: the losses are results of `vmap` over a batch of one, so each is a function of its own row. Therefore the
gradient of their sum by a tensor that belongs to one row is the gradient of that row's loss, and rows cannot affect
each other, by construction.

A parameter that any other operation uses is differentiated directly: each row has a copy of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from sordino.gradients.attention import attend, written_out
from sordino.gradients.embedding_bags import EqualBags, LookedUpBags, look_up_bags
from sordino.gradients.fused_kernels import CrossEntropyOfRows, fused, max_pool, one_hot
from sordino.gradients.layers import EmbeddingOperation, embed
from sordino.gradients.one_pass import OnePass, filled, one_pass, refuse_own_rule, refuse_text
from sordino.gradients.operations import RecordedOperation, recognise, tensors_in
from sordino.gradients.recurrent import unrolled
from sordino.gradients.rowwise import apply, mapped
from sordino.gradients.rules import MultipliesAsItRan, RegisteredLayerUse, Rule, is_registered, registered_layers
from sordino.gradients.torch_state import call, original, pinned, working_dtype
from sordino.gradients.views import Names, parameter_of
from sordino.gradients.vmapped import Objective, drawing_by_row, fixed_values, trained_values


class TapeUnavailable(Exception):
    """There is no tape of this model or pass; for example, it used a parameter in a way that the survey did not see.

    Gradients are then computed row by row, by `vmap`.
    """


@dataclass(frozen=True)
class Use:
    """One use of trained parameters by a known operation, with shape and dtype of the tagged tensor of one row."""

    rule: Rule
    tagged_shape: tuple[int, ...]
    tagged_dtype: torch.dtype


@dataclass(frozen=True)
class Survey:
    """The uses of trained parameters in a model's forward pass. Depends on the model and on public shapes only.

    `direct` are the names of parameters that are differentiated directly: each row has copies of them. With the
    gradients by tied embedding tables, which each row forms, these take `bytes_of_copies` of the `bytes_per_row`.
    `because` has the operation without a rule that uses each of `direct`, or "" if none uses it. `tensors_made` is the
    number of tensors that a pass makes in new memory, a measure of its fixed cost. `autocast` is the half precision of
    matrix products, or None; it is the same for survey and record. `input_names` are the arguments of `forward` that
    get the inputs; without names, inputs go by position.
    """

    uses: tuple[Use, ...]
    direct: tuple[str, ...]
    bytes_per_row: int
    bytes_of_copies: int
    tensors_made: int
    autocast: torch.dtype | None
    input_names: tuple[str, ...] = ()
    because: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Tape:
    """The record of one pass, rows first: saved input and output gradient of each use, and the direct gradients."""

    names: tuple[str, ...]
    uses: tuple[Use, ...]
    saved: tuple[Tensor, ...]
    output_gradients: tuple[Tensor, ...]
    direct: dict[str, Tensor]
    usable: Tensor
    dtype: torch.dtype


_surveys: WeakKeyDictionary[nn.Module, dict[Any, Survey]] = WeakKeyDictionary()
_MOST_SURVEYS = 64  # of one model; rows of several lengths have one each
_given_up: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def give_up(model: nn.Module, reason: str) -> None:
    """Makes no more tapes of this model: its gradients are computed row by row, by `vmap`."""
    _given_up[original(model)] = reason


def why_given_up(model: nn.Module) -> str | None:
    """The reason why tapes of this model were given up, or None."""
    return _given_up.get(original(model))


def survey(
    model: nn.Module, row: tuple[Tensor, ...], autocast: torch.dtype | None = None, names: tuple[str, ...] = ()
) -> Survey:
    """The survey of a model on a synthetic row, cached as long as model and row have the same properties."""
    return survey_like(model, row, lambda: row, autocast, names)


def survey_like(
    model: nn.Module,
    rows: tuple[Tensor, ...],
    make_row: Callable[[], tuple[Tensor, ...]],
    autocast: torch.dtype | None = None,
    names: tuple[str, ...] = (),
) -> Survey:
    """The survey of a model for rows like `rows`. `make_row` makes a synthetic one if there is no cached survey."""
    model = original(model)
    if model in _given_up:
        raise TapeUnavailable(_given_up[model])
    properties = (
        autocast,
        names,
        working_dtype(model),
        tuple((x.shape[1:], x.dtype) for x in rows),
        tuple(name for name, p in model.named_parameters() if p.requires_grad),
        tuple((module.training, is_registered(module)) for module in model.modules()),
    )
    known = _surveys.setdefault(model, {})
    if properties not in known:
        if len(known) >= _MOST_SURVEYS:
            known.clear()
        known[properties] = _survey(model, make_row(), autocast, names)
    return known[properties]


def _survey(
    model: nn.Module, row: tuple[Tensor, ...], autocast: torch.dtype | None, names_of_inputs: tuple[str, ...]
) -> Survey:
    """Runs the model once and records each operation on a parameter. The global generator is left as it was."""
    trained, fixed = trained_values(model), fixed_values(model)
    surveyor, dtype = _Surveyor(Names(trained), [*trained.values(), *fixed.values(), *row]), working_dtype(model)
    with pinned(model, autocast), torch.no_grad(), torch.random.fork_rng(devices=[]):
        with surveyor, surveyor.registered(model):
            inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in row)
            call(model, {**fixed, **trained}, inputs, names_of_inputs)
    used = {parameter_of(name) for use in surveyor.uses for name in use.rule.names if name}
    direct = tuple(name for name in trained if name in surveyor.operations or name not in used)
    without_direct = (replace(use, rule=_without(use.rule, direct)) for use in surveyor.uses)
    uses = tuple(use for use in without_direct if any(use.rule.names))
    tagged_bytes = sum(prod(use.tagged_shape) * use.tagged_dtype.itemsize for use in uses)
    copied_bytes = sum(trained[name].numel() for name in direct) * dtype.itemsize
    copied_bytes += sum(trained[name].numel() for name in _tied_tables(uses)) * dtype.itemsize
    bytes_per_row = sum(surveyor.bytes_made()) + tagged_bytes + copied_bytes
    because = tuple(surveyor.operations.get(name, "") for name in direct)
    tensors = len(surveyor.bytes_made())
    return Survey(uses, direct, bytes_per_row, copied_bytes, tensors, autocast, names_of_inputs, because)


def _tied_tables(uses: tuple[Use, ...]) -> set[str]:
    """The embedding tables that are also used otherwise, so that each row forms a gradient by the whole table."""
    names = Counter(parameter_of(name) for use in uses for name in use.rule.names if name)
    looked_up = (use for use in uses if isinstance(use.rule, EmbeddingOperation | EqualBags | LookedUpBags))
    return {
        parameter_of(name) for use in looked_up for name in use.rule.names if name and names[parameter_of(name)] > 1
    }


def record(
    model: nn.Module,
    objective: Objective,
    inputs: tuple[Tensor, ...],
    target: Tensor,
    seeds: Tensor,
    plan: Survey,
) -> Tape:
    """Records the tape of the rows of a batch. `objective` is that of `gradients_of_rows`."""
    model = original(model)
    with pinned(model, plan.autocast) as dtype, torch.enable_grad():
        passed = _forward(model, objective, inputs, _usable(target, dtype), seeds, plan, dtype)
        losses, usable = passed.given
        return passed.tape(losses, usable)


def forward(model: nn.Module, inputs: tuple[Tensor, ...], seeds: Tensor, plan: Survey) -> Pass:
    """The forward half of `record`, for a loss that is not known yet: `Pass.given` is the model's outputs."""
    model = original(model)
    with pinned(model, plan.autocast) as dtype, torch.enable_grad():
        return _forward(model, lambda outputs, _: outputs, inputs, seeds, seeds, plan, dtype)


@dataclass(frozen=True, repr=False)
class Pass:
    """A forward pass of all rows that can be differentiated by the zeros and copies of each row, and by nothing else.

    `given` is the result of `of_outputs` for each row, rows first.
    """

    given: Any
    names: tuple[str, ...]
    uses: tuple[Use, ...]
    saved: tuple[Tensor, ...]
    zeros: list[Tensor]
    copies: dict[str, Tensor]
    dtype: torch.dtype

    def tape(self, losses: Tensor, usable: Tensor) -> Tape:
        """The backward half. `losses[r]` must be a function of `given` of row `r`. A pass has one backward half.

        One backward pass serves all rows: loss r is a function of row r alone, so the gradient of the sum of the losses
        by the zeros and copies of row r is that of loss r.
        """
        gradients = _gradients(losses, [*self.zeros, *self.copies.values()])
        direct = dict(zip(self.copies, gradients[len(self.zeros) :], strict=True))
        saved = tuple(self._converted(use.rule, x.detach()) for use, x in zip(self.uses, self.saved, strict=True))
        of_outputs = tuple(self._converted(use.rule, g) for use, g in zip(self.uses, gradients, strict=False))
        return Tape(self.names, self.uses, saved, of_outputs, direct, usable, self.dtype)

    def _converted(self, rule: Rule, recorded: Tensor) -> Tensor:
        """The tensor in the model's precision, or in bfloat16 for a rule that multiplies in that of its operation."""
        keeps_half = isinstance(rule, MultipliesAsItRan) and recorded.dtype == torch.bfloat16
        return recorded if keeps_half and self.dtype == torch.float32 else _usable(recorded, self.dtype)


def _forward(
    model: nn.Module,
    of_outputs: Callable[[Any, Tensor], Any],
    inputs: tuple[Tensor, ...],
    labels: Tensor,
    seeds: Tensor,
    plan: Survey,
    dtype: torch.dtype,
) -> Pass:
    # Shared, not copied: `vmap` refuses to write a row's values into a tensor that has no axis of rows.
    parameters = tuple(model.named_parameters())
    trained = {name: p.detach() for name, p in parameters if p.requires_grad}
    fixed = {name: x.detach() for name, x in (*parameters, *model.named_buffers()) if name not in trained}
    order = tuple(trained)
    direct = {name: trained.pop(name) for name in plan.direct}
    names = Names(trained)

    rows = tuple(_usable(x, dtype) for x in inputs)
    zero = torch.zeros((), device=seeds.device)
    zeros = [_expanded_leaf(zero.to(use.tagged_dtype).expand(use.tagged_shape), len(seeds)) for use in plan.uses]
    copies = {name: _expanded_leaf(value, len(seeds)) for name, value in direct.items()}
    shape_of_given: list[TreeSpec] = []

    def of_one(*tensors: Tensor) -> list[Tensor]:
        each = iter(tensors)
        recorder = _Recorder(plan, names, list(islice(each, len(zeros))), this_pass)
        of_row = dict(zip(direct, islice(each, len(direct)), strict=True))
        *row, label = (x.unsqueeze(0) for x in each)
        with recorder, recorder.registered(model):
            outputs = call(model, {**fixed, **trained, **of_row}, tuple(row), plan.input_names)
        with CrossEntropyOfRows(this_pass):
            given, shape = tree_flatten(of_outputs(outputs, label))
        if len(recorder.saved) != len(plan.uses):
            raise TapeUnavailable
        shape_of_given.append(shape)
        return [*given, *recorder.saved]

    def attempt(randomness: str) -> list[Tensor]:
        return mapped(of_one, [*zeros, *copies.values(), *rows, labels], len(seeds), randomness)

    with one_pass() as this_pass:
        results = drawing_by_row(attempt, seeds)
    shape = shape_of_given.pop()
    given = tree_unflatten(results[: shape.num_leaves], shape)
    return Pass(given, order, plan.uses, tuple(results[shape.num_leaves :]), zeros, copies, dtype)


def _usable(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in the model's precision; an inference tensor is cloned, so that it can be differentiated."""
    x = x.clone() if x.is_inference() else x
    return x.to(dtype) if x.is_floating_point() else x


def _expanded_leaf(value: Tensor, rows: int) -> Tensor:
    """A leaf tensor with one `value` per row, expanded without copies: its gradient has the rows first."""
    return value.expand(rows, *value.shape).detach().requires_grad_()


def _gradients(losses: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Gradients of the sum of the losses by some tensors; zeros by tensors on which no loss depends."""
    if not losses.requires_grad or not by:
        return [torch.zeros_like(x) for x in by]
    gradients = torch.autograd.grad(losses.sum(), by, allow_unused=True)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(by, gradients, strict=True)]


def _tagged(zero: Tensor, value: Tensor) -> Tensor:
    return cast(Tensor, apply(_TagFunction, value, zero))


class _TagFunction(torch.autograd.Function):
    """value + zero, without the addition: both get the gradient. `value` is not used for anything else afterwards."""

    @staticmethod
    def forward(context: Any, value: Tensor, zero: Tensor) -> Tensor:
        return value.data  # shares memory but is no view, so that an in-place operation may follow

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], value: Tensor, zero: Tensor) -> tuple[Tensor, int]:
        if axes[0] is None:  # a value that is the same for all rows so far gets an axis of rows
            value = value.expand(info.batch_size, *value.shape).clone()
        else:
            value = value.movedim(axes[0], 0)
        return _tagged(zero, value), 0


class _OperationWatcher(TorchFunctionMode, ABC):
    """Sees each operation of a forward pass, and separates known operations on trained parameters from all others."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names
        self._registered_around = 0

    def registered(self, model: nn.Module) -> AbstractContextManager[None]:
        """While active, a layer with a registered gradient is one operation, whatever operations it consists of."""
        return registered_layers(model, self._names.of, self._entered, self._left)

    def _entered(self) -> None:
        self._registered_around += 1

    def _left(self, rule: RegisteredLayerUse, arguments: dict[str, Any]) -> Any:
        self._registered_around -= 1
        inner = self._registered_around > 0 or not any(rule.names)
        return arguments["output"] if inner else self.known(RecordedOperation(rule, arguments))

    @abstractmethod
    def known(self, operation: RecordedOperation) -> Any:
        """Called with a known operation, which it must carry out."""

    @abstractmethod
    def other(self, names: set[str], function: Any) -> None:
        """Called after any other operation, `function`, that used the parameters `names`."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._registered_around:
            return function(*args, **kwargs)
        attention = written_out(function, args, kwargs)
        if attention is not None:
            with self:
                return attend(attention)
        recurrent = unrolled(function, args, kwargs)
        if recurrent is not None:
            with self:
                return recurrent()
        used = self._names.used(tensors_in((*args, *kwargs.values())))
        operation = recognise(function, args, kwargs, self._names.of)
        if operation is not None:
            other_uses = Counter(used) - Counter(parameter_of(name) for name in operation.rule.names if name)
            if other_uses:  # a parameter may also be the input
                self.other(set(other_uses), function)
            return self.known(operation)
        for replacement in (max_pool, one_hot, embed, look_up_bags):
            result = replacement(function, args, kwargs)
            if result is not None:
                return result
        result = (fused(function) or function)(*args, **kwargs)
        # Reading a shape gives no tensor, and does not count as a use.
        if used and tensors_in(result) and not self._names.note_views(function, args, result):
            self.other(set(used), function)
        return result


class _Surveyor(_OperationWatcher):
    """Records which known operation uses which parameter, and which parameters other operations use."""

    def __init__(self, names: Names, given: list[Tensor]) -> None:
        super().__init__(names)
        self.uses: list[Use] = []
        self.operations: dict[str, str] = {}  # the first operation without a rule that uses a parameter
        self._given = {x.untyped_storage().data_ptr() for x in given}
        self._made: dict[int, Tensor] = {}

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)
        # Kept alive, so that addresses stay distinct. Tensors of a `vmap` in the model have none, and are not counted.
        self._made |= {x.untyped_storage().data_ptr(): x for x in tensors_in(result) if not is_batchedtensor(x)}
        return result

    def bytes_made(self) -> list[int]:
        """The memory of each tensor that the pass made, as if none was freed."""
        return [x.untyped_storage().nbytes() for address, x in self._made.items() if address not in self._given]

    def known(self, operation: RecordedOperation) -> Any:
        output, _ = operation.rule.run(operation.arguments, partial(self._note, operation.rule))
        return output

    def _note(self, rule: Rule, tagged: Tensor) -> Tensor:
        self.uses.append(Use(rule, tuple(tagged.shape), tagged.dtype))
        return tagged

    def other(self, names: set[str], function: Any) -> None:
        for name in names:
            self.operations.setdefault(name, getattr(function, "__name__", type(function).__name__))


class _Recorder(_OperationWatcher):
    """Carries out known operations, tags each output with the row's zero, and checks the pass against the survey."""

    def __init__(self, plan: Survey, names: Names, zeros: list[Tensor], this_pass: OnePass) -> None:
        super().__init__(names)
        self._uses, self._zeros, self._this_pass = plan.uses, zeros, this_pass
        self.saved: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        refuse_own_rule(function, args)
        refuse_text(function)
        self._this_pass.given(tensors_in((*args, *(kwargs or {}).values())))
        result = filled(function, super().__torch_function__(function, types, args, kwargs))
        self._this_pass.made(tensors_in(result))
        return result

    def known(self, operation: RecordedOperation) -> Any:
        number = len(self.saved)
        if number >= len(self._uses) or operation.rule != self._uses[number].rule:
            raise TapeUnavailable
        output, saved = operation.rule.run(operation.arguments, partial(self._tag, self._zeros[number]))
        self.saved.append(saved)
        return output

    def _tag(self, zero: Tensor, value: Tensor) -> Tensor:
        if value.dtype != zero.dtype:  # the gradient would be rounded to the precision of the zero
            raise TapeUnavailable
        return _tagged(zero, value)

    def other(self, names: set[str], function: Any) -> None:
        raise TapeUnavailable


def _without(rule: Any, direct: tuple[str, ...]) -> Rule:
    """The rule without gradients for the parameters `direct`."""
    names = tuple(None if name is None or parameter_of(name) in direct else name for name in rule.names)
    changed: Rule = replace(rule, names=names)
    return changed
