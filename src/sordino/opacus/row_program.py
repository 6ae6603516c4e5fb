"""A traced program carried out row by row, and its check on synthetic rows before it is used."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from sordino.errors import UsageError
from sordino.gradients.watching import one_line
from sordino.opacus.constants import Constant, appearance, is_number, is_public
from sordino.opacus.traced import Call, Column, Departure, Leaf, Node, Output, calls_of, evaluate, leaves_of, name_of

_STRUCTURAL = frozenset(
    "view reshape flatten unflatten squeeze unsqueeze transpose permute movedim expand unbind chunk split stack "
    "cat sum mean amax amin max min argmax logsumexp log_softmax softmax select narrow one_hot __getitem__".split()
)
_close = partial(torch.allclose, rtol=1e-3, atol=1e-5)


@dataclass(frozen=True, repr=False)
class RowProgram:
    """What a script computes from a batch, as a function of one row.

    Guarantee: `of_rows` runs the program inside `vmap` on batches of one, so that result `r` depends on row `r` of the
    leaves and on constants only.
    """

    node: Node
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, node: Node) -> RowProgram:
        return cls(node, tuple(leaves_of(node)))

    def given(self) -> list[Any]:
        """The numbers and tensors that the script computed with: no defaults, no axes or sizes, nothing public."""
        return [
            value
            for call in calls_of(self.node)
            for name, value in _arguments_of(call)
            if _is_given(call.function, name, value)
        ]

    @property
    def after(self) -> frozenset[Departure]:
        """What of a batch had left the trace when the last constant of the program was written down."""
        return self.node.after if isinstance(self.node, Call) else frozenset()

    @property
    def is_leaf(self) -> bool:
        """Whether the script did nothing but to hand the tensor on."""
        return not isinstance(self.node, Call)

    def of_batch(self, values: list[Tensor]) -> Tensor:
        """The program on a whole batch, as the script ran it. For synthetic values."""
        places = {id(leaf): place for place, leaf in enumerate(self.leaves)}
        result: Tensor = evaluate(self.node, lambda leaf: values[places[id(leaf)]])
        return result

    def of_rows(self, values: list[Tensor]) -> Tensor:
        """The program on each row alone, as a batch of one; a result per row, with its batch axis if it has one."""
        result: Tensor = vmap(lambda rows: self.of_batch([x.unsqueeze(0) for x in rows]))(values)
        return result

    def check_rows(self, values: list[Tensor]) -> None:
        """Refuses what gives a row another value among others than alone. The values are synthetic."""
        alone, together = self._both(values)
        same = alone.ndim > 1 and alone.shape[1] == 1 and alone.flatten(0, 1).shape == together.shape
        if not same or not _close(alone.flatten(0, 1), together, equal_nan=True):
            raise UsageError(
                "what the script does to the batch before the model mixes its rows: change each row on its own, "
                "or in the data set."
            )

    def reduction(self, values: list[Tensor]) -> str:
        """How the loss of a batch follows from those of its rows, "mean" or "sum". The values are synthetic."""
        alone, together = self._both(values)
        if together.numel() != 1 or alone.numel() != len(values[0]):
            raise UsageError(
                f"the loss must be a single number, got shape {tuple(together.shape)}: take its mean over the batch."
            )
        found: dict[str, Callable[[Tensor], Tensor]] = {"mean": torch.mean, "sum": torch.sum}
        for name, reduce in found.items():
            if _close(reduce(alone), together.reshape(())):
                return name
        raise UsageError(
            "the loss is neither the mean nor the sum of the losses of single rows, so it mixes the rows of a batch: "
            "write it as one, or pass criterion=... to make_private."
        )

    def _both(self, values: list[Tensor]) -> tuple[Tensor, Tensor]:
        try:
            return self.of_rows(values), self.of_batch(values)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise UsageError(
                f"what the script computes from a batch fails on single synthetic rows, with '{one_line(error)}': let "
                "it act on each row of the batch alone, use the batch's own tensors, or pass criterion=... to "
                "make_private."
            ) from None

    def looks(self) -> tuple[Any, ...]:
        """By which a program is known again: its functions, constants and leaves, in order."""
        return tuple(_looks(self.node, {}))


def _arguments_of(call: Call) -> Iterator[tuple[str, Any]]:
    """By name, as far as there is one."""
    for name, value in (*(("", x) for x in call.args), *call.kwargs.items()):
        for leaf in tree_leaves(value):
            yield name, leaf


def _is_given(function: Any, name: str, value: Any) -> bool:
    if is_public(value):
        return False
    if not is_number(value):
        return isinstance(value, Constant | np.ndarray)
    is_axis = type(value) is int and name_of(function) in _STRUCTURAL
    return not is_axis and value != _defaults(function).get(name)


@lru_cache(maxsize=64)
def _defaults(function: Any) -> dict[str, Any]:
    """By name; a function written in C does not tell."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


def _looks(node: Any, known: dict[int, int]) -> Any:
    if isinstance(node, Column | Output):
        yield (type(node).__name__, node.place)
    elif isinstance(node, list | tuple):
        yield len(node)
        for item in node:
            yield from _looks(item, known)
    elif isinstance(node, dict):
        for key, item in node.items():
            yield key
            yield from _looks(item, known)
    elif not isinstance(node, Call):
        yield appearance(node)
    elif id(node) in known:
        yield ("again", known[id(node)])
    else:
        known[id(node)] = len(known)
        yield (node.function, node.part)
        yield from _looks(node.args, known)
        yield from _looks(node.kwargs, known)
