"""Tensors of an issued batch, and what a script computes from them, as a program that can be run on one row.

A script sees the values of a whole batch. They carry no autograd graph, so that there is one way from a loss to a
gradient, and it leads through here: the operations that the script applied are noted, and the kernel runs them again
for each row, as a batch of one. What mixes rows cannot reach another row that way, whatever it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from sordino.errors import UsageError
from sordino.gradients.row_loss import num_classes

_SCALARS_IN_PLACE: dict[str, Any] = {"add_": torch.add, "sub_": torch.sub, "mul_": torch.mul, "div_": torch.div}
_CLASS_LABELS = (F.cross_entropy, F.nll_loss)
_LEAVES_THE_TRACE = (Tensor.detach, Tensor.data.__get__)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class Column:
    """A leaf: one tensor of a batch that was issued, by its place among inputs and target."""

    origin: object
    place: int


@dataclass(frozen=True, eq=False)
class Output:
    """A leaf: one tensor that the model gave in a forward pass."""

    origin: object
    place: int


@dataclass(frozen=True, eq=False)
class Call:
    """A function applied to other nodes and to constants. `part` is which of its results, where there are several."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    part: int | None


Node = Column | Output | Call


class Traced(Tensor):
    """A value, and the node that says how it came about."""

    node: Node
    on_backward: Callable[[Traced], None]

    @classmethod
    def of(cls, value: Tensor, node: Node, on_backward: Callable[[Traced], None]) -> Traced:
        traced = value.as_subclass(cls)
        traced.node, traced.on_backward = node, on_backward
        return traced

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function is Tensor.backward:
                return _backward(*args, **kwargs)
            name = getattr(function, "__name__", "")
            if (name.endswith("_") and not name.endswith("__")) or name == "__setitem__" or "out" in kwargs:
                return _in_place(name, args, kwargs)
            result = labelled(function)(*tree_map(plain, args), **tree_map(plain, kwargs))
            return _noted(function, args, kwargs, result)


def plain(value: Any) -> Any:
    """The value without its history."""
    if not isinstance(value, Traced):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return value.as_subclass(Tensor)


def leaves_of(node: Node) -> list[Column | Output]:
    """The leaves that a node was computed from, each once."""
    found: dict[int, Column | Output] = {}
    seen: set[int] = set()
    waiting: list[Any] = [node]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Call):
            waiting += tree_leaves((value.args, value.kwargs))
        elif isinstance(value, Column | Output):
            found[id(value)] = value
    return list(found.values())


def evaluate(node: Node, leaf: Callable[[Column | Output], Tensor]) -> Any:
    """Runs the program again, with other values for its leaves. What several nodes share is computed once."""
    known: dict[int, Any] = {}

    def value(node: Any) -> Any:
        if isinstance(node, Column | Output):
            return leaf(node)
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


def _noted(function: Any, args: Any, kwargs: Any, result: Any) -> Any:
    leaves = tree_leaves(result)
    if function in _LEAVES_THE_TRACE or not any(isinstance(x, Tensor) for x in leaves):
        return result
    like = next(x for x in tree_leaves((args, kwargs)) if isinstance(x, Traced))
    if any(
        isinstance(x, Tensor) and x.requires_grad and not isinstance(x, Traced) for x in tree_leaves((args, kwargs))
    ):
        raise UsageError(
            "the loss uses a tensor that requires a gradient and is no output of the private model: penalise weights "
            "by the optimizer's weight_decay, and detach what is constant."
        )
    noted_args, noted_kwargs = tree_map(_node, (args, kwargs))
    if isinstance(result, Tensor):
        return Traced.of(result, Call(function, noted_args, noted_kwargs, None), like.on_backward)
    places = iter(range(len(leaves)))

    def part(value: Any) -> Any:
        place = next(places)
        if not isinstance(value, Tensor):
            return value
        return Traced.of(value, Call(function, noted_args, noted_kwargs, place), like.on_backward)

    return tree_map(part, result)


def _node(value: Any) -> Any:
    return value.node if isinstance(value, Traced) else value


def _in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Sums of losses, as in `total += loss`, are the one thing that may be changed in place."""
    changed = args[0] if args else None
    if name not in _SCALARS_IN_PLACE or not isinstance(changed, Tensor) or changed.ndim > 0:
        raise UsageError(
            f"what comes from the batch is not computed in place, got {name}: make a new tensor, or use .detach() for "
            "what is not trained on."
        )
    function = _SCALARS_IN_PLACE[name]
    new = _noted(function, args, kwargs, function(*tree_map(plain, args), **tree_map(plain, kwargs)))
    if not isinstance(changed, Traced):
        return new
    plain(changed).copy_(plain(new))
    changed.node = new.node
    return changed


def _backward(loss: Any, *args: Any, **kwargs: Any) -> None:
    if any(x is not None for x in (*args, *kwargs.values()) if not isinstance(x, bool)):
        raise UsageError("backward takes no gradient or inputs here: make the loss a single number.")
    loss.on_backward(loss)
