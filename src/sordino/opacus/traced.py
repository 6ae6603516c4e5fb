"""Tensors of an issued batch, and what a script computes from them, as a program that can be run on one row.

A script sees the values of a whole batch. They carry no autograd graph, so that there is one way from a loss to a
gradient, and it leads through here: the operations that the script applied are noted, and the kernel runs them again
for each row, as a batch of one. What mixes rows cannot reach another row that way, whatever it does. What is detached
is noted too, and is a constant of the row alone.

Values leave the trace where a script asks for a number, a NumPy array or the truth of a tensor. Numbers have no
history, so that nobody can see where they go. `Trace` notes that they left, and the session then takes no other
constants into a loss than those that it had before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves, tree_map

import sordino
from sordino.errors import UsageError
from sordino.gradients.row_loss import num_classes
from sordino.opacus.constants import ScriptConstant

_SCALARS_IN_PLACE: dict[str, Any] = {"add_": torch.add, "sub_": torch.sub, "mul_": torch.mul, "div_": torch.div}
_CLASS_LABELS = (F.cross_entropy, F.nll_loss)
_DETACH = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]
_MOST_LINES = 3
_LIBRARIES = tuple(os.path.dirname(library.__file__) + os.sep for library in (sordino, torch, np) if library.__file__)

# What tells nothing about the rows, and what tells how many there are. Any other answer that is no tensor is a value.
# A printed tensor is for the eye.
_FACTS = frozenset(
    "dtype device layout ndim dim ndimension requires_grad is_leaf grad_fn is_floating_point is_complex is_signed "
    "is_cuda is_cpu is_sparse is_quantized is_meta is_nested is_mkldnn is_contiguous is_inference is_shared is_pinned "
    "element_size itemsize type get_device names has_names _version __hash__ __dlpack_device__ result_type "
    "__repr__ __format__ __dir__".split()
)
_SIZES = frozenset(("__len__", "numel", "nelement", "nbytes", "stride"))


class IssuedBatch:
    """Rows that were handed out together, until the step on them is taken."""

    def __init__(self) -> None:
        self.is_over = False


class Departure(Enum):
    """What left the trace: numbers, the answer to a question of yes or no, or how many rows there are."""

    NUMBER = auto()
    DECISION = auto()
    SIZE = auto()


class Trace:
    """Notes on the batches of one session: where to report `backward`, and where values left."""

    def __init__(self, on_backward: Callable[[TracedTensor], None], is_of_the_model: Callable[[Tensor], bool]) -> None:
        self.on_backward, self.is_of_the_model = on_backward, is_of_the_model
        self._left: dict[Departure, dict[tuple[str, int], None]] = {}

    def note(self, departure: Departure) -> None:
        self._left.setdefault(departure, {})[_line_of_the_script()] = None

    @property
    def left(self) -> frozenset[Departure]:
        return frozenset(self._left)

    def lines(self, *departures: Departure) -> str:
        """Where it was, as words for a message."""
        return _in_words([line for departure in departures for line in self._left.get(departure, {})])


@dataclass(frozen=True, eq=False)
class Column:
    """A leaf: one tensor of a batch that was issued, by its place among inputs and target."""

    batch: IssuedBatch
    place: int
    looks: Tensor  # without values


@dataclass(frozen=True, eq=False)
class Output:
    """A leaf: one tensor that the model gave in a forward pass over rows of a batch."""

    batch: IssuedBatch
    place: int
    looks: Tensor
    origin: object


@dataclass(frozen=True, eq=False)
class Lost:
    """A value of a batch that cannot be computed again row by row. `why` and the line say what became of it."""

    why: str

    @classmethod
    def here(cls, why: str) -> Lost:
        return cls(f"{why} ({_in_words([_line_of_the_script()])})")


@dataclass(frozen=True, eq=False)
class Call:
    """A function applied to other nodes and to constants. `part` is which of its results, where there are several.

    Its constants cannot depend on what left the trace later; `after` is what left before.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None
    batch: IssuedBatch
    is_detached: bool
    after: frozenset[Departure]


Node = Column | Output | Call
Leaf = Column | Output


class TracedTensor(Tensor):
    """A value, and the node that says how it came about."""

    value: Tensor
    node: Node | Lost
    history: Trace

    @classmethod
    def of(cls, value: Tensor, node: Node | Lost, trace: Trace) -> TracedTensor:
        traced: TracedTensor = Tensor._make_subclass(cls, value)
        traced.value, traced.node, traced.history = value, node, trace
        return traced

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function is Tensor.backward:
                return _backward(*args, **kwargs)
            name = name_of(function)
            if _changes_in_place(name) or "out" in kwargs:
                return _in_place(function, name, args, kwargs)
            if name == "__iter__":
                return _rows_of(args[0])
            if name in ("shape", "size"):
                return _shape_of(args[0], *args[1:], **kwargs)
            result = labelled(function)(*tree_map(plain, args), **tree_map(plain, kwargs))
            return _noted(function, name, args, kwargs, result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it as a function that is switched off
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Comes here only where torch reads a value without asking, as `torch.tensor(loss)` does."""
        for traced in _traced_in((args, kwargs)):
            traced.history.note(Departure.NUMBER)
        return function(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


def plain(value: Any) -> Any:
    """The value without its history."""
    return value.value if isinstance(value, TracedTensor) else value


def leaves_of(node: Node) -> list[Leaf]:
    """The leaves that a node was computed from, each once."""
    return [x for x in _nodes_of(node) if isinstance(x, Column | Output)]


def calls_of(node: Node) -> list[Call]:
    """The calls by which a node was computed, each once."""
    return [x for x in _nodes_of(node) if isinstance(x, Call)]


def _nodes_of(node: Node) -> list[Node]:
    found: dict[int, Node] = {}
    waiting: list[Any] = [node]
    while waiting:
        value = waiting.pop()
        if id(value) in found or not isinstance(value, Column | Output | Call):
            continue
        found[id(value)] = value
        if isinstance(value, Call):
            waiting += tree_leaves((value.args, value.kwargs))
    return list(found.values())


def evaluate(node: Node, leaf: Callable[[Leaf], Tensor], device: str | None = None) -> Any:
    """Runs the program again, with other values for its leaves. What several nodes share is computed once.

    Where a `device` is given, it has the constants too.
    """
    known: dict[int, Any] = {}

    def value(node: Any) -> Any:
        if isinstance(node, Column | Output):
            return leaf(node)
        if isinstance(node, ScriptConstant):
            return node.value() if device is None else node.value().to(device)
        if not isinstance(node, Call):
            return node
        if id(node) not in known:
            args, kwargs = tree_map(value, (node.args, node.kwargs))
            result = labelled(node.function)(*args, **kwargs)
            known[id(node)] = result if node.part is None else tree_leaves(result)[node.part]
        return known[id(node)]

    return value(node)


def labelled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss of class labels that makes NaN of a label outside the model's classes, where torch would raise.

    An error would tell the world that the row was drawn. A row whose loss is not finite counts as absent.
    """
    if function not in _CLASS_LABELS:
        return function

    def lenient(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
        if target.is_floating_point():
            return function(input, target, *args, **kwargs)
        if input.device.type == "cpu":  # elsewhere a label out of range cannot be recovered from
            try:
                return function(input, target, *args, **kwargs)
            except (IndexError, RuntimeError):
                pass
        ignored = kwargs.get("ignore_index", -100)
        classes = num_classes(input) if input.ndim > 1 else len(input)
        known = (target == ignored) | ((target >= 0) & (target < classes))
        loss = function(input, torch.where(known, target, 0), *args, **kwargs)
        return loss * torch.where(known.all(), 1.0, torch.nan)

    return lenient


def name_of(function: Any) -> str:
    """The name of a function of torch, or of the attribute that is read or set."""
    name: str = getattr(function, "__name__", "")
    if name == "__get__":
        return str(getattr(function.__self__, "__name__", name))
    return name


def _changes_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__", "__delete__")


def _traced_in(values: Any) -> list[TracedTensor]:
    return [x for x in tree_leaves(values) if isinstance(x, TracedTensor)]


def _noted(function: Any, name: str, args: Any, kwargs: Any, result: Any) -> Any:
    """The result with its history. What is no tensor has none, and it is noted that it left."""
    operands = tree_leaves((args, kwargs))
    trace = next(x for x in operands if isinstance(x, TracedTensor)).history
    leaves = tree_leaves(result)
    if name == "__reduce_ex__" or not all(x is None or isinstance(x, Tensor) for x in leaves):
        if name in _SIZES:
            if any(isinstance(x, TracedTensor) and _varying_axes(x) for x in operands):
                trace.note(Departure.SIZE)
        elif name not in _FACTS:
            trace.note(Departure.DECISION if any(isinstance(x, bool) for x in leaves) else Departure.NUMBER)
    if name == "__reduce_ex__" or not any(isinstance(x, Tensor) for x in leaves):
        return result
    tensors = [x for x in operands if isinstance(x, Tensor) and not isinstance(x, TracedTensor)]
    if any(is_functorch_wrapped_tensor(x) for x in tensors):
        raise UsageError("the model uses a value of a batch that the script kept: a model is given rows, and no more.")
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise UsageError(
            "the loss uses a tensor that requires a gradient and is no output of the private model: penalise weights "
            "by the optimizer's weight_decay, and compute what is constant under torch.no_grad()."
        )
    made = _node_of(trace, function, name, args, kwargs)
    if isinstance(result, Tensor):
        return TracedTensor.of(result, made(None), trace)
    places = iter(range(len(leaves)))

    def part(value: Any) -> Any:
        place = next(places)
        return TracedTensor.of(value, made(place), trace) if isinstance(value, Tensor) else value

    return tree_map(part, result)


def _node_of(trace: Trace, function: Any, name: str, args: Any, kwargs: Any) -> Callable[[int | None], Node | Lost]:
    """The node of each part of a result."""
    nodes = [x.node for x in _traced_in((args, kwargs))]
    for node in nodes:
        if isinstance(node, Lost):
            return lambda part: node
    batches = {node.batch for node in nodes if not isinstance(node, Lost)}
    if len(batches) > 1 or any(batch.is_over for batch in batches):
        lost = Lost.here("a value of an earlier batch")
        return lambda part: lost
    if name == "__deepcopy__":
        return lambda part: nodes[0]
    batch = batches.pop()
    noted_args, noted_kwargs = tree_map(_operand, (args, kwargs))
    detaches = function in _DETACH
    is_detached = detaches or all(isinstance(node, Call) and node.is_detached for node in nodes)

    def call(part: int | None) -> Call:
        if detaches:
            return Call(Tensor.detach, noted_args, {}, None, batch, True, trace.left)
        made = Call(function, noted_args, noted_kwargs, part, batch, is_detached, trace.left)
        if torch.is_grad_enabled():
            return made
        return Call(Tensor.detach, (made,), {}, None, batch, True, trace.left)

    return call


def _operand(value: Any) -> Any:
    return value.node if isinstance(value, TracedTensor) else ScriptConstant.of(value)


def _in_place(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sums of losses, as in `total += loss`, are the one thing of a batch that is followed when changed in place.

    What was detached may be changed, and may be written to a log or a metric, but does not come back.
    """
    changed, operands = args[0] if args else None, _traced_in((args, kwargs))
    of_the_batch = [x for x in operands if not _is_detached(x)]
    if "out" in kwargs or not isinstance(changed, Tensor) or isinstance(changed, nn.Parameter):
        raise UsageError(_NOT_IN_PLACE.format(name))
    if name in _SCALARS_IN_PLACE and changed.ndim == 0 and of_the_batch:
        return _sum_of_losses(name, changed, args, kwargs)
    if isinstance(changed, TracedTensor):
        if not _is_detached(changed):
            raise UsageError(_NOT_IN_PLACE.format(name))
        function(*tree_map(plain, args), **tree_map(plain, kwargs))
        changed.node = Lost.here("a value that was changed in place")
        return changed
    if name == "__set__" or (of_the_batch and name != "__setitem__") or operands[0].history.is_of_the_model(changed):
        raise UsageError(_NOT_IN_PLACE.format(name))
    operands[0].history.note(Departure.NUMBER)
    return function(*tree_map(plain, args), **tree_map(plain, kwargs))


_NOT_IN_PLACE = (
    "what comes from the batch is not computed in place, nor written to the model, got {}: make a new tensor, or "
    "detach what is for a log."
)


def _is_detached(traced: TracedTensor) -> bool:
    return isinstance(traced.node, Lost) or (isinstance(traced.node, Call) and traced.node.is_detached)


def _sum_of_losses(name: str, changed: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedTensor:
    function = _SCALARS_IN_PLACE[name]
    result = function(*tree_map(plain, args), **tree_map(plain, kwargs))
    new: TracedTensor = _noted(function, name[:-1], args, kwargs, result)
    if not isinstance(changed, TracedTensor):
        return new
    changed.value.copy_(new.value)
    changed.node = new.node
    return changed


def _backward(loss: Any, *args: Any, **kwargs: Any) -> None:
    if any(x is not None for x in (*args, *kwargs.values()) if not isinstance(x, bool)):
        raise UsageError("backward takes no gradient or inputs here: make the loss a single number.")
    loss.history.on_backward(loss)


def _rows_of(traced: TracedTensor) -> Iterator[Any]:
    if 0 in _varying_axes(traced):
        traced.history.note(Departure.SIZE)
    parts = traced.value.unbind(0)
    return iter(_noted(Tensor.unbind, "unbind", (traced, 0), {}, parts) if parts else ())


def _shape_of(traced: TracedTensor, dim: int | None = None) -> Any:
    sizes, varying = traced.value.shape, _varying_axes(traced)
    if dim is None:
        return Shape.of(sizes, varying, traced.history) if varying else sizes
    if dim % max(1, len(sizes)) in varying:
        traced.history.note(Departure.SIZE)
    return traced.value.size(dim)


def _varying_axes(traced: TracedTensor) -> frozenset[int]:
    """The axes whose size depends on how many rows were drawn.

    They are found by computing the shape for one row more, without values. Where it depends on values, these left.
    """
    node, everything = traced.node, frozenset(range(traced.value.ndim))
    if isinstance(node, Column | Output):
        return frozenset((0,))
    if isinstance(node, Lost):
        return everything

    def one_row_more(leaf: Leaf) -> Tensor:
        looks = leaf.looks
        return looks.new_empty((len(looks) + 1, *looks.shape[1:]))

    try:
        more = evaluate(node, one_row_more, device="meta").shape
    except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
        traced.history.note(Departure.NUMBER)
        return everything
    axes = zip(traced.value.shape, more, strict=True)
    return frozenset(axis for axis, (size, other) in enumerate(axes) if size != other)


class Shape(tuple[int, ...]):
    """The shape of a tensor of a batch. It notes when the number of rows is read from it."""

    _varying: frozenset[int]
    _trace: Trace

    @classmethod
    def of(cls, sizes: Sequence[int], varying: frozenset[int], trace: Trace) -> Shape:
        shape = cls(sizes)
        shape._varying, shape._trace = varying, trace
        return shape

    def __getitem__(self, place: Any) -> Any:
        chosen = range(len(self))[place]
        if not self._varying.isdisjoint((chosen,) if isinstance(chosen, int) else chosen):
            self._trace.note(Departure.SIZE)
        found = super().__getitem__(place)
        return found if isinstance(found, int) else torch.Size(found)

    def __iter__(self) -> Iterator[int]:
        self._trace.note(Departure.SIZE)
        return super().__iter__()

    def numel(self) -> int:
        self._trace.note(Departure.SIZE)
        return torch.Size(tuple.__getitem__(self, slice(None))).numel()


def _line_of_the_script() -> tuple[str, int]:
    """The innermost line that is not of a library: nearest to where a value left."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _in_words(lines: list[tuple[str, int]]) -> str:
    told = [f"{os.path.basename(file)}:{line}" for file, line in lines[:_MOST_LINES]]
    more = len(lines) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")
