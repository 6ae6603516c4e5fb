"""One forward and one backward pass that leave, row by row, the inputs and output gradients of trained operations.

To each output of a recorded operation a zero is added that belongs to the row. The gradient by that zero is that of the
output, and nothing else is differentiated: no weight's gradient is formed, nor the gradient of the first input.

Guarantee: the losses come out of `vmap` over a batch of one, so that each is a function of its own row. The gradient of
their sum by what belongs to one row is therefore the gradient of that row's loss, and rows are apart by construction.

A parameter that anything but a known operation uses is differentiated directly: each row has a copy of its own.
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
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from sordino.gradients.attention import attend, written_out
from sordino.gradients.fused_kernels import CrossEntropyOfRows, fused, max_pool
from sordino.gradients.layers import embed
from sordino.gradients.one_pass import OnePass, one_pass, refuse_own_rule
from sordino.gradients.operations import RecordedOperation, recognise, tensors_in
from sordino.gradients.recurrent import unrolled
from sordino.gradients.rowwise import apply, mapped
from sordino.gradients.rules import MultipliesAsItRan, RegisteredLayerUse, Rule, is_registered, registered_layers
from sordino.gradients.torch_state import original, pinned, working_dtype
from sordino.gradients.vmapped import Objective, drawing_by_row, fixed_values, trained_values


class TapeUnavailable(Exception):
    """No tape of this model, or of this pass: it used a parameter in a way that the survey did not see, for one.

    The row-by-row path answers.
    """


@dataclass(frozen=True)
class Use:
    """One use of trained parameters by a known operation, with the looks of what it tags for a batch of one."""

    rule: Rule
    tagged_shape: tuple[int, ...]
    tagged_dtype: torch.dtype


@dataclass(frozen=True)
class Survey:
    """What a model's forward pass does with its trained parameters. Depends on the model and on public shapes only.

    `autocast` is the half precision in which it takes products, or None: the same for survey and record.
    """

    uses: tuple[Use, ...]
    direct: tuple[str, ...]
    bytes_per_row: int
    autocast: torch.dtype | None


@dataclass(frozen=True, repr=False)
class Tape:
    """What one pass left behind, rows in front: per use what was saved and the output's gradient, and the rest."""

    names: tuple[str, ...]
    uses: tuple[Use, ...]
    saved: tuple[Tensor, ...]
    output_gradients: tuple[Tensor, ...]
    direct: dict[str, Tensor]
    usable: Tensor
    dtype: torch.dtype


_surveys: WeakKeyDictionary[nn.Module, tuple[Any, Survey]] = WeakKeyDictionary()
_given_up: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def give_up(model: nn.Module, reason: str) -> None:
    """From here on no tape is made of this model: its rows are taken one by one, by `vmap`."""
    _given_up[original(model)] = reason


def why_given_up(model: nn.Module) -> str | None:
    """Why the tape is not used for this model although it could follow it, in words."""
    return _given_up.get(original(model))


def survey(model: nn.Module, row: tuple[Tensor, ...], autocast: torch.dtype | None = None) -> Survey:
    """What the model does with a synthetic row, remembered for as long as the model and the row look the same."""
    return survey_like(model, row, lambda: row, autocast)


def survey_like(
    model: nn.Module,
    rows: tuple[Tensor, ...],
    make_row: Callable[[], tuple[Tensor, ...]],
    autocast: torch.dtype | None = None,
) -> Survey:
    """The same with a synthetic row that looks like one of `rows`, made if the answer is not known."""
    model = original(model)
    if model in _given_up:
        raise TapeUnavailable(_given_up[model])
    looks = (
        autocast,
        working_dtype(model),
        tuple((x.shape[1:], x.dtype) for x in rows),
        tuple(name for name, p in model.named_parameters() if p.requires_grad),
        tuple((module.training, is_registered(module)) for module in model.modules()),
    )
    known = _surveys.get(model)
    if known is None or known[0] != looks:
        known = _surveys[model] = looks, _survey(model, make_row(), autocast)
    return known[1]


def _survey(model: nn.Module, row: tuple[Tensor, ...], autocast: torch.dtype | None) -> Survey:
    """Looks at every operation on a parameter. The global generator is left as it was."""
    trained, fixed = trained_values(model), fixed_values(model)
    watch = _Surveyor({id(value): name for name, value in trained.items()}, [*trained.values(), *fixed.values(), *row])
    dtype = working_dtype(model)
    with pinned(model, autocast), torch.no_grad(), torch.random.fork_rng(devices=[]), watch, watch.registered(model):
        functional_call(model, {**fixed, **trained}, tuple(x.to(dtype) if x.is_floating_point() else x for x in row))
    used = {name for use in watch.uses for name in use.rule.names if name} | watch.direct
    direct = tuple(name for name in trained if name in watch.direct or name not in used)
    kept = (replace(use, rule=_without(use.rule, direct)) for use in watch.uses)
    uses = tuple(use for use in kept if any(use.rule.names))
    of_tagged = sum(prod(use.tagged_shape) * use.tagged_dtype.itemsize for use in uses)
    of_copies = sum(trained[name].numel() for name in direct) * dtype.itemsize
    return Survey(uses, direct, watch.bytes_made() + of_tagged + of_copies, autocast)


def record(
    model: nn.Module,
    objective: Objective,
    inputs: tuple[Tensor, ...],
    target: Tensor,
    seeds: Tensor,
    plan: Survey,
) -> Tape:
    """The tape of the rows of a batch. `objective` is as for `gradients_of_rows`."""
    model = original(model)
    with pinned(model, plan.autocast) as dtype, torch.enable_grad():
        passed = _forward(model, objective, inputs, _usable(target, dtype), seeds, plan, dtype)
        losses, usable = passed.given
        return passed.tape(losses, usable)


def forward(model: nn.Module, inputs: tuple[Tensor, ...], seeds: Tensor, plan: Survey) -> Pass:
    """The first half of `record`, for a loss that is not known yet: what is given is the model's outputs."""
    model = original(model)
    with pinned(model, plan.autocast) as dtype, torch.enable_grad():
        return _forward(model, lambda outputs, _: outputs, inputs, seeds, seeds, plan, dtype)


@dataclass(frozen=True, repr=False)
class Pass:
    """A forward pass of all rows that can be differentiated by what belongs to each row, and by nothing else.

    `given` is what was computed from the outputs of each row, rows in front.
    """

    given: Any
    names: tuple[str, ...]
    uses: tuple[Use, ...]
    saved: tuple[Tensor, ...]
    zeros: list[Tensor]
    copies: dict[str, Tensor]
    dtype: torch.dtype

    def tape(self, losses: Tensor, usable: Tensor) -> Tape:
        """The second half. `losses[r]` is a function of what was given for row `r`; the pass is used up."""
        gradients = _gradients(losses, [*self.zeros, *self.copies.values()])
        direct = dict(zip(self.copies, gradients[len(self.zeros) :], strict=True))
        saved = tuple(self._as_needed(use.rule, x.detach()) for use, x in zip(self.uses, self.saved, strict=True))
        of_outputs = tuple(self._as_needed(use.rule, g) for use, g in zip(self.uses, gradients, strict=False))
        return Tape(self.names, self.uses, saved, of_outputs, direct, usable, self.dtype)

    def _as_needed(self, rule: Rule, recorded: Tensor) -> Tensor:
        as_it_is = isinstance(rule, MultipliesAsItRan) and recorded.dtype == torch.bfloat16
        return recorded if as_it_is and self.dtype == torch.float32 else _usable(recorded, self.dtype)


def _forward(
    model: nn.Module,
    of_outputs: Callable[[Any, Tensor], Any],
    inputs: tuple[Tensor, ...],
    labels: Tensor,
    seeds: Tensor,
    plan: Survey,
    dtype: torch.dtype,
) -> Pass:
    # No copies: what a row computes cannot be written into a tensor that `vmap` has not made the row's own.
    parameters = tuple(model.named_parameters())
    trained = {name: p.detach() for name, p in parameters if p.requires_grad}
    fixed = {name: x.detach() for name, x in (*parameters, *model.named_buffers()) if name not in trained}
    order = tuple(trained)
    direct = {name: trained.pop(name) for name in plan.direct}
    names = {id(value): name for name, value in trained.items()}

    rows = tuple(_usable(x, dtype) for x in inputs)
    zero = torch.zeros((), device=seeds.device)
    zeros = [_of_each_row(zero.to(use.tagged_dtype).expand(use.tagged_shape), len(seeds)) for use in plan.uses]
    copies = {name: _of_each_row(value, len(seeds)) for name, value in direct.items()}
    shape_of_given: list[TreeSpec] = []

    def of_one(*tensors: Tensor) -> list[Tensor]:
        each = iter(tensors)
        recorder = _Recorder(plan, names, list(islice(each, len(zeros))), of_this_pass)
        of_row = dict(zip(direct, islice(each, len(direct)), strict=True))
        *row, label = (x.unsqueeze(0) for x in each)
        with recorder, recorder.registered(model):
            outputs = functional_call(model, {**fixed, **trained, **of_row}, tuple(row))
        with CrossEntropyOfRows(of_this_pass):
            given, shape = tree_flatten(of_outputs(outputs, label))
        if len(recorder.saved) != len(plan.uses):
            raise TapeUnavailable
        shape_of_given.append(shape)
        return [*given, *recorder.saved]

    def attempt(randomness: str) -> list[Tensor]:
        return mapped(of_one, [*zeros, *copies.values(), *rows, labels], len(seeds), randomness)

    with one_pass() as of_this_pass:
        results = drawing_by_row(attempt, seeds)
    shape = shape_of_given.pop()
    given = tree_unflatten(results[: shape.num_leaves], shape)
    return Pass(given, order, plan.uses, tuple(results[shape.num_leaves :]), zeros, copies, dtype)


def _usable(x: Tensor, dtype: torch.dtype) -> Tensor:
    """In the model's precision, and fit for differentiation although it may come out of an inference mode."""
    x = x.clone() if x.is_inference() else x
    return x.to(dtype) if x.is_floating_point() else x


def _of_each_row(value: Tensor, rows: int) -> Tensor:
    """What every row has a copy of, without copies: the gradient by it has the rows in front."""
    return value.expand(rows, *value.shape).detach().requires_grad_()


def _gradients(losses: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Of the sum of the losses; zeros by what none of them depends on."""
    if not losses.requires_grad or not by:
        return [torch.zeros_like(x) for x in by]
    found = torch.autograd.grad(losses.sum(), by, allow_unused=True)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(by, found, strict=True)]


def _tagged(zero: Tensor, value: Tensor) -> Tensor:
    return cast(Tensor, apply(_TagFunction, value, zero))


class _TagFunction(torch.autograd.Function):
    """value + zero, without the addition: both get the gradient. `value` is used for nothing else from here on."""

    @staticmethod
    def forward(context: Any, value: Tensor, zero: Tensor) -> Tensor:
        return value.data  # the same memory, and no view of it: an operation in place may follow

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], value: Tensor, zero: Tensor) -> tuple[Tensor, int]:
        if axes[0] is None:  # what no row has touched yet becomes the row's own
            value = value.expand(info.batch_size, *value.shape).clone()
        else:
            value = value.movedim(axes[0], 0)
        return _tagged(zero, value), 0


class _OperationWatcher(TorchFunctionMode, ABC):
    """Sees every operation of a forward pass, and tells the known ones on trained parameters from the rest."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self._names = names
        self._registered_around = 0

    def registered(self, model: nn.Module) -> AbstractContextManager[None]:
        """While active, a layer with a registered gradient is one operation, whatever it does inside."""
        return registered_layers(model, lambda value: self._names.get(id(value)), self._entered, self._left)

    def _entered(self) -> None:
        self._registered_around += 1

    def _left(self, rule: RegisteredLayerUse, arguments: dict[str, Any]) -> Any:
        self._registered_around -= 1
        inner = self._registered_around > 0 or not any(rule.names)
        return arguments["output"] if inner else self.known(RecordedOperation(rule, arguments))

    @abstractmethod
    def known(self, found: RecordedOperation) -> Any:
        """Carries out a known operation."""

    @abstractmethod
    def other(self, names: set[str]) -> None:
        """Hears of any other operation that used the parameters `names`."""

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
        used = [self._names[id(x)] for x in tensors_in((*args, *kwargs.values())) if id(x) in self._names]
        found = recognise(function, args, kwargs, lambda value: self._names.get(id(value)))
        if found is not None:
            besides = Counter(used) - Counter(name for name in found.rule.names if name)
            if besides:  # a parameter may also be the input
                self.other(set(besides))
            return self.known(found)
        for stand_in in (max_pool, embed):
            result = stand_in(function, args, kwargs)
            if result is not None:
                return result
        result = (fused(function) or function)(*args, **kwargs)
        if used and tensors_in(result):  # a question about a shape is no use
            self.other(set(used))
        return result


class _Surveyor(_OperationWatcher):
    """Notes which known operation uses which parameter, and which parameters anything else uses."""

    def __init__(self, names: dict[int, str], given: list[Tensor]) -> None:
        super().__init__(names)
        self.uses: list[Use] = []
        self.direct: set[str] = set()
        self._given = {x.untyped_storage().data_ptr() for x in given}
        self._made: dict[int, Tensor] = {}

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(function, types, args, kwargs)
        # Kept alive, so that each has a place of its own. What a model maps by itself has none, and is not counted.
        self._made |= {x.untyped_storage().data_ptr(): x for x in tensors_in(result) if not is_batchedtensor(x)}
        return result

    def bytes_made(self) -> int:
        """How much memory the pass filled, if none of it was given back."""
        return sum(x.untyped_storage().nbytes() for place, x in self._made.items() if place not in self._given)

    def known(self, found: RecordedOperation) -> Any:
        output, _ = found.rule.run(found.arguments, partial(self._note, found.rule))
        return output

    def _note(self, rule: Rule, tagged: Tensor) -> Tensor:
        self.uses.append(Use(rule, tuple(tagged.shape), tagged.dtype))
        return tagged

    def other(self, names: set[str]) -> None:
        self.direct |= names


class _Recorder(_OperationWatcher):
    """Carries the known operations out, tags each output with the row's zero, and checks that the survey was right."""

    def __init__(self, plan: Survey, names: dict[int, str], zeros: list[Tensor], of_this_pass: OnePass) -> None:
        super().__init__(names)
        self._uses, self._zeros, self._of_this_pass = plan.uses, zeros, of_this_pass
        self.saved: list[Tensor] = []

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        refuse_own_rule(function, args)
        self._of_this_pass.given(tensors_in((*args, *(kwargs or {}).values())))
        result = super().__torch_function__(function, types, args, kwargs)
        self._of_this_pass.made(tensors_in(result))
        return result

    def known(self, found: RecordedOperation) -> Any:
        place = len(self.saved)
        if place >= len(self._uses) or found.rule != self._uses[place].rule:
            raise TapeUnavailable
        output, saved = found.rule.run(found.arguments, partial(self._tag, self._zeros[place]))
        self.saved.append(saved)
        return output

    def _tag(self, zero: Tensor, value: Tensor) -> Tensor:
        if value.dtype != zero.dtype:  # its gradient would be rounded on the way to the zero
            raise TapeUnavailable
        return _tagged(zero, value)

    def other(self, names: set[str]) -> None:
        raise TapeUnavailable


def _without(rule: Any, direct: tuple[str, ...]) -> Rule:
    names = tuple(None if name in direct else name for name in rule.names)
    changed: Rule = replace(rule, names=names)
    return changed
