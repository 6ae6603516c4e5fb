"""The record of a script's operations on a batch, as a program that can be run again with other values.

Leaves are tensors of the batch and outputs of the model; a `Call` is an operation. Nodes hold no values of a batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import sordino
from sordino.gradients.row_loss import num_classes
from sordino.opacus.batch_of_one import SQUEEZES, squeezed
from sordino.opacus.constants import ScriptConstant

_CLASS_LABELS = (F.cross_entropy, F.nll_loss)
_MOST_LINES = 3
_LIBRARIES = tuple(os.path.dirname(library.__file__) + os.sep for library in (sordino, torch, np) if library.__file__)


class IssuedBatch:
    """The rows that were issued together, until the step on them is taken."""

    def __init__(self) -> None:
        self.is_over = False


class Departure(Enum):
    """The kind of a value that left the trace: numbers, a truth value, or the number of rows."""

    NUMBER = auto()
    DECISION = auto()
    SIZE = auto()


@dataclass(frozen=True, eq=False)
class Column:
    """A leaf: one tensor of an issued batch, by its index among inputs and target.

    `own_sizes` are the axes on which each row has a size of its own. The largest is a value of the batch.
    """

    batch: IssuedBatch
    place: int
    meta: Tensor  # shape and dtype, without values
    own_sizes: frozenset[int] = frozenset()

    @property
    def varying(self) -> dict[int, Departure]:
        """The axes whose sizes depend on the rows, and what leaves the trace when a size is read."""
        return {0: Departure.SIZE, **dict.fromkeys(self.own_sizes, Departure.NUMBER)}


@dataclass(frozen=True, eq=False)
class Output:
    """A leaf: one tensor that the model returned in a forward pass over rows of a batch.

    If `is_number`, the model returned one number for the batch, which is the mean of the numbers of single rows.
    """

    batch: IssuedBatch
    place: int
    meta: Tensor
    origin: object
    is_number: bool = False

    @property
    def varying(self) -> dict[int, Departure]:
        """The axes whose sizes depend on the rows, and what leaves the trace when a size is read."""
        return {} if self.is_number else {0: Departure.SIZE}


@dataclass(frozen=True, eq=False)
class Untraceable:
    """A value of a batch that cannot be computed again row by row. `why` gives the reason and the script line."""

    why: str

    @classmethod
    def here(cls, why: str) -> Untraceable:
        return cls(f"{why} ({in_words([line_of_the_script()])})")


@dataclass(frozen=True, eq=False)
class Call:
    """A function applied to other nodes and to constants. If it has several results, `part` is the index of this one.

    Its constants cannot depend on values that left the trace later; `after` lists the kinds that had left before.
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


def leaves_of(node: Node) -> list[Leaf]:
    """The leaves from which a node was computed, each once."""
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
    """Runs the program again with other values for its leaves. Shared nodes are computed once.

    With a `device`, constants are moved to it.
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
    """Makes a class-label loss return NaN for a label outside the model's classes, where torch would raise an error.

    An error would reveal that the row was sampled. A row whose loss is not finite is ignored. `squeeze()` without an
    axis keeps the axis of rows, which has length one where a row is a batch of one.
    """
    if function in SQUEEZES:
        return squeezed
    if function not in _CLASS_LABELS:
        return function

    def lenient(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
        if target.is_floating_point():
            return function(input, target, *args, **kwargs)
        if input.device.type == "cpu":  # on CUDA a label out of range is a fatal error
            try:
                return function(input, target, *args, **kwargs)
            except (IndexError, RuntimeError):
                pass
        ignored = kwargs.get("ignore_index", -100)
        classes = num_classes(input) if input.ndim > 1 else len(input)
        valid = (target == ignored) | ((target >= 0) & (target < classes))
        loss = function(input, torch.where(valid, target, 0), *args, **kwargs)
        return loss * torch.where(valid.all(), 1.0, torch.nan)

    return lenient


def name_of(function: Any) -> str:
    """The name of a torch function, or of the attribute that is read or set."""
    name: str = getattr(function, "__name__", "")
    if name == "__get__":
        return str(getattr(function.__self__, "__name__", name))
    return name


def line_of_the_script() -> tuple[str, int]:
    """The innermost line outside of the libraries, closest to where a value left."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def in_words(lines: list[tuple[str, int]]) -> str:
    shown = [f"{os.path.basename(file)}:{line}" for file, line in lines[:_MOST_LINES]]
    more = len(lines) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
