"""`TracedTensor`: tensors of an issued batch that record a script's operations, to be run again on single rows.

A script sees the values of a whole batch, without an autograd graph. Its operations are recorded, and the kernel runs
them again for each row as a batch of one to compute the gradient. So the loss of a row cannot depend on other rows,
whatever operations the script uses. Detached values are recorded too, and are constants of that row.

Values leave the trace when a script reads a tensor as a Python number, a NumPy array or a truth value. Such values have
no history, so their use cannot be followed. `Trace` records that they left, and from then on the session accepts no new
constants in a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._pytree import tree_leaves, tree_map

from sordino.errors import UsageError
from sordino.opacus.constants import ScriptConstant
from sordino.opacus.nodes import (
    Call,
    Column,
    Departure,
    Leaf,
    Node,
    Output,
    Untraceable,
    evaluate,
    in_words,
    labelled,
    line_of_the_script,
    name_of,
)

_SCALARS_IN_PLACE: dict[str, Any] = {"add_": torch.add, "sub_": torch.sub, "mul_": torch.mul, "div_": torch.div}
_NEUTRAL_WITH_ONE = frozenset(("div", "true_divide", "__truediv__", "mul", "__mul__", "__rmul__"))
_DETACH = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]

# Attributes and methods that reveal nothing about the rows, and those that reveal their number. Every other result that
# is not a tensor counts as a value of the batch. Printing a tensor is allowed: its string is for a person to read.
_FACTS = frozenset(
    "dtype device layout ndim dim ndimension requires_grad is_leaf grad_fn is_floating_point is_complex is_signed "
    "is_cuda is_cpu is_sparse is_quantized is_meta is_nested is_mkldnn is_contiguous is_inference is_shared is_pinned "
    "element_size itemsize type get_device names has_names _version __hash__ __dlpack_device__ result_type "
    "__repr__ __format__ __dir__".split()
)
_SIZES = frozenset(("__len__", "numel", "nelement", "nbytes", "stride"))


class Trace:
    """The record of one session: the callback of `backward`, and the script lines at which values left the trace.

    `has_own_sizes` says whether some rows differ in their sizes.
    """

    def __init__(
        self,
        on_backward: Callable[[TracedTensor], None],
        is_of_the_model: Callable[[Tensor], bool],
        has_own_sizes: bool = False,
    ) -> None:
        self.on_backward, self.is_of_the_model, self.has_own_sizes = on_backward, is_of_the_model, has_own_sizes
        self._left: dict[Departure, dict[tuple[str, int], None]] = {}

    def note(self, departure: Departure) -> None:
        self._left.setdefault(departure, {})[line_of_the_script()] = None

    @property
    def left(self) -> frozenset[Departure]:
        return frozenset(self._left)

    def lines(self, *departures: Departure) -> str:
        """The script lines at which values left, for an error message."""
        return in_words([line for departure in departures for line in self._left.get(departure, {})])


class TracedTensor(Tensor):
    """A tensor of a batch with the node that says how it was computed."""

    value: Tensor
    node: Node | Untraceable
    history: Trace

    @classmethod
    def of(cls, value: Tensor, node: Node | Untraceable, trace: Trace) -> TracedTensor:
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
            return _recorded(function, name, args, kwargs, result)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it as a function that is switched off
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called only where torch reads a value without `__torch_function__`, as `torch.tensor(loss)` does."""
        for traced in _traced_in((args, kwargs)):
            traced.history.note(Departure.NUMBER)
        return function(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


def plain(value: Any) -> Any:
    """The value without its history."""
    return value.value if isinstance(value, TracedTensor) else value


def _changes_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__set__", "__delete__")


def _traced_in(values: Any) -> list[TracedTensor]:
    return [x for x in tree_leaves(values) if isinstance(x, TracedTensor)]


def _recorded(function: Any, name: str, args: Any, kwargs: Any, result: Any) -> Any:
    """Returns the result with its history. A result that is not a tensor has none, and is recorded as a departure."""
    operands = tree_leaves((args, kwargs))
    trace = next(x for x in operands if isinstance(x, TracedTensor)).history
    leaves = tree_leaves(result)
    if name == "__reduce_ex__" or not all(x is None or isinstance(x, Tensor) for x in leaves):
        if name in _SIZES:
            for x in operands:
                for departure in _varying_axes(x).values() if isinstance(x, TracedTensor) else ():
                    trace.note(departure)
        elif name not in _FACTS:
            trace.note(Departure.DECISION if any(isinstance(x, bool) for x in leaves) else Departure.NUMBER)
    if name == "__reduce_ex__" or not any(isinstance(x, Tensor) for x in leaves):
        return result
    tensors = [x for x in operands if isinstance(x, Tensor) and not isinstance(x, TracedTensor)]
    if any(is_functorch_wrapped_tensor(x) for x in tensors):
        raise UsageError("the model uses a value of a batch that the script stored: pass it to the model as an input.")
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise UsageError(
            "the loss uses a tensor that requires a gradient and is not an output of the private model: penalize "
            "weights with the optimizer's weight_decay, and compute constants under torch.no_grad()."
        )
    if name in _NEUTRAL_WITH_ONE and not kwargs and len(args) == 2 and isinstance(args[0], TracedTensor):
        if type(args[1]) in (int, float) and args[1] == 1 and result.dtype == args[0].value.dtype:
            return TracedTensor.of(result, args[0].node, trace)  # the same function: no constant of the script
    node_of_part = _node_of(trace, function, name, args, kwargs)
    if isinstance(result, Tensor):
        return TracedTensor.of(result, node_of_part(None), trace)
    places = iter(range(len(leaves)))

    def part(value: Any) -> Any:
        place = next(places)
        return TracedTensor.of(value, node_of_part(place), trace) if isinstance(value, Tensor) else value

    return tree_map(part, result)


def _node_of(
    trace: Trace, function: Any, name: str, args: Any, kwargs: Any
) -> Callable[[int | None], Node | Untraceable]:
    """Returns a function that gives the node of each part of a result."""
    nodes = [x.node for x in _traced_in((args, kwargs))]
    for node in nodes:
        if isinstance(node, Untraceable):
            return lambda part: node
    batches = {node.batch for node in nodes if not isinstance(node, Untraceable)}
    if len(batches) > 1 or any(batch.is_over for batch in batches):
        untraceable = Untraceable.here("a value of an earlier batch")
        return lambda part: untraceable
    if name == "__deepcopy__":
        return lambda part: nodes[0]
    batch = batches.pop()
    node_args, node_kwargs = tree_map(_operand, (args, kwargs))
    detaches = function in _DETACH
    is_detached = detaches or all(isinstance(node, Call) and node.is_detached for node in nodes)

    def call(part: int | None) -> Call:
        if detaches:
            return Call(Tensor.detach, node_args, {}, None, batch, True, trace.left)
        result = Call(function, node_args, node_kwargs, part, batch, is_detached, trace.left)
        if torch.is_grad_enabled():
            return result
        return Call(Tensor.detach, (result,), {}, None, batch, True, trace.left)

    return call


def _operand(value: Any) -> Any:
    return value.node if isinstance(value, TracedTensor) else ScriptConstant.of(value)


def _in_place(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Handles in-place operations. On traced values only sums of losses, as in `total += loss`, are supported.

    Detached values may be changed in place, or written to a log or a metric, but cannot be used in the loss again.
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
        changed.node = Untraceable.here("a value that was changed in place")
        return changed
    if name == "__set__" or (of_the_batch and name != "__setitem__") or operands[0].history.is_of_the_model(changed):
        raise UsageError(_NOT_IN_PLACE.format(name))
    operands[0].history.note(Departure.NUMBER)
    return function(*tree_map(plain, args), **tree_map(plain, kwargs))


_NOT_IN_PLACE = (
    "values of the batch cannot be computed in place or written to the model, got {}: make a new tensor, or detach "
    "values for a log."
)


def _is_detached(traced: TracedTensor) -> bool:
    return isinstance(traced.node, Untraceable) or (isinstance(traced.node, Call) and traced.node.is_detached)


def _sum_of_losses(name: str, changed: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TracedTensor:
    function = _SCALARS_IN_PLACE[name]
    result = function(*tree_map(plain, args), **tree_map(plain, kwargs))
    new: TracedTensor = _recorded(function, name[:-1], args, kwargs, result)
    if not isinstance(changed, TracedTensor):
        return new
    changed.value.copy_(new.value)
    changed.node = new.node
    return changed


def _backward(loss: Any, *args: Any, **kwargs: Any) -> None:
    if any(x is not None for x in (*args, *kwargs.values()) if not isinstance(x, bool)):
        raise UsageError("backward() takes no gradient or inputs here: make the loss a scalar.")
    loss.history.on_backward(loss)


def _rows_of(traced: TracedTensor) -> Iterator[Any]:
    if 0 in _varying_axes(traced):
        traced.history.note(Departure.SIZE)
    parts = traced.value.unbind(0)
    return iter(_recorded(Tensor.unbind, "unbind", (traced, 0), {}, parts) if parts else ())


def _shape_of(traced: TracedTensor, dim: int | None = None) -> Any:
    sizes, varying = traced.value.shape, _varying_axes(traced)
    if dim is None:
        return Shape.of(sizes, varying, traced.history) if varying else sizes
    axis = dim % max(1, len(sizes))
    if axis in varying:
        traced.history.note(varying[axis])
    return traced.value.size(dim)


def _varying_axes(traced: TracedTensor) -> dict[int, Departure]:
    """The axes whose size depends on the rows, and what leaves the trace when such a size is read.

    They are found by computing the shape on the meta device for one more row, and for rows that are larger by one. A
    shape that depends on values counts as a departure of numbers.
    """
    node, axes = traced.node, range(traced.value.ndim)
    if isinstance(node, Column | Output):
        return node.varying
    if isinstance(node, Untraceable):
        others = Departure.NUMBER if traced.history.has_own_sizes else Departure.SIZE
        return {axis: others if axis else Departure.SIZE for axis in axes}
    found: dict[int, Departure] = {}
    for departure in (Departure.SIZE, Departure.NUMBER) if traced.history.has_own_sizes else (Departure.SIZE,):
        try:
            more = evaluate(node, partial(_one_more, departure), device="meta").shape
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            traced.history.note(Departure.NUMBER)
            return dict.fromkeys(axes, Departure.NUMBER)
        sizes = zip(traced.value.shape, more, strict=True)
        found |= {axis: departure for axis, (size, other) in enumerate(sizes) if size != other}
    return found


def _one_more(departure: Departure, leaf: Leaf) -> Tensor:
    """An empty tensor like a leaf, larger by one on the axes of which a size is such a departure."""
    varying = leaf.varying
    return leaf.meta.new_empty([size + (varying.get(axis) is departure) for axis, size in enumerate(leaf.meta.shape)])


class Shape(tuple[int, ...]):
    """The shape of a tensor of a batch. It records when a size that depends on the rows is read from it."""

    _varying: dict[int, Departure]
    _trace: Trace

    @classmethod
    def of(cls, sizes: Sequence[int], varying: dict[int, Departure], trace: Trace) -> Shape:
        shape = cls(sizes)
        shape._varying, shape._trace = varying, trace
        return shape

    def __getitem__(self, place: Any) -> Any:
        chosen = range(len(self))[place]
        self._read((chosen,) if isinstance(chosen, int) else chosen)
        sizes = super().__getitem__(place)
        return sizes if isinstance(sizes, int) else torch.Size(sizes)

    def __iter__(self) -> Iterator[int]:
        self._read(range(len(self)))
        return super().__iter__()

    def numel(self) -> int:
        self._read(range(len(self)))
        return torch.Size(tuple.__getitem__(self, slice(None))).numel()

    def _read(self, axes: Iterable[int]) -> None:
        for axis in axes:
            if axis in self._varying:
                self._trace.note(self._varying[axis])
