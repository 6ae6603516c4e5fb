"""`RowProgram`: a traced program that runs row by row. `ScriptLoss`: the loss of one row of a script.

A program is checked on synthetic rows before it is used. The loss of a row is what the script computed for a batch, or
the criterion that it declared.
"""

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
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from sordino.errors import UsageError
from sordino.gradients.one_pass import TensorTracker, one_pass
from sordino.gradients.probes import one_line
from sordino.gradients.row_loss import Loss, RowLoss
from sordino.opacus.constants import ScriptConstant, appearance, is_number, is_public
from sordino.opacus.nodes import Call, Column, Departure, Leaf, Node, Output, calls_of, evaluate, leaves_of, name_of

_STRUCTURAL = frozenset(
    "view reshape flatten unflatten squeeze unsqueeze transpose permute movedim expand unbind chunk split stack "
    "cat sum mean amax amin max min argmax logsumexp log_softmax softmax select narrow one_hot __getitem__".split()
)
_close = partial(torch.allclose, rtol=1e-3, atol=1e-5)


@dataclass(frozen=True, repr=False)
class RowProgram:
    """The computation of a script from a batch, as a function of one row.

    Guarantee: `of_rows` runs the program inside `vmap` on batches of one, so that result `r` depends on row `r` of the
    leaves and on constants only.
    """

    node: Node
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, node: Node) -> RowProgram:
        return cls(node, tuple(leaves_of(node)))

    def given(self) -> list[Any]:
        """The constants of the script: numbers and tensors that are no defaults, no axes or sizes, and not public."""
        return [
            value
            for call in calls_of(self.node)
            for name, value in _arguments_of(call)
            if _is_given(call.function, name, value)
        ]

    @property
    def after(self) -> frozenset[Departure]:
        """The kinds of batch values that had left the trace when the last constant of the program was recorded."""
        return self.node.after if isinstance(self.node, Call) else frozenset()

    @property
    def is_leaf(self) -> bool:
        """Whether the script passed the tensor on unchanged."""
        return not isinstance(self.node, Call)

    def of_batch(self, values: list[Tensor]) -> Tensor:
        """Runs the program on a whole batch, as the script did. For synthetic values."""
        places = {id(leaf): place for place, leaf in enumerate(self.leaves)}

        def value(leaf: Leaf) -> Tensor:
            found = values[places[id(leaf)]]
            return found.mean(0) if isinstance(leaf, Output) and leaf.is_number else found

        result: Tensor = evaluate(self.node, value)
        return result

    def of_rows(self, values: list[Tensor]) -> Tensor:
        """Runs the program on each row as a batch of one. Each row's result keeps its batch axis if it has one."""
        result: Tensor = vmap(lambda rows: self.of_batch([x.unsqueeze(0) for x in rows]))(values)
        return result

    def check_rows(self, values: list[Tensor]) -> None:
        """Raises an error if the result of a row depends on other rows. The values are synthetic."""
        alone, together = self._both(values)
        same = alone.ndim > 1 and alone.shape[1] == 1 and alone.flatten(0, 1).shape == together.shape
        if not same or not _close(alone.flatten(0, 1), together, equal_nan=True):
            raise UsageError(
                "the preprocessing of the batch in the script mixes its rows: transform each row on its own, or in the "
                "dataset."
            )

    def reduction(self, values: list[Tensor]) -> str:
        """The reduction of row losses to the loss of a batch, "mean" or "sum". The values are synthetic."""
        alone, together = self._both(values)
        if together.numel() != 1 or alone.numel() != len(values[0]):
            raise UsageError(
                f"the loss must be a scalar, got shape {tuple(together.shape)}: take its mean over the batch."
            )
        reductions: dict[str, Callable[[Tensor], Tensor]] = {"mean": torch.mean, "sum": torch.sum}
        for name, reduce in reductions.items():
            if _close(reduce(alone), together.reshape(())):
                return name
        raise UsageError(
            "the loss must be the mean or the sum of the losses of single rows, but it mixes the rows of a batch: "
            "rewrite it, or pass criterion=... to make_private."
        )

    def _both(self, values: list[Tensor]) -> tuple[Tensor, Tensor]:
        try:
            return self.of_rows(values), self.of_batch(values)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise UsageError(
                f"the computation of the script from a batch fails on single synthetic rows, with '{one_line(error)}': "
                "process each row of the batch on its own, use the batch's own tensors, or pass criterion=... to "
                "make_private."
            ) from None

    def fingerprint(self) -> tuple[Any, ...]:
        """A value by which programs are compared: functions, constants and leaves, in order."""
        return tuple(_fingerprint(self.node, {}))


def _arguments_of(call: Call) -> Iterator[tuple[str, Any]]:
    """All arguments with their names; positional ones have the name ""."""
    for name, value in (*(("", x) for x in call.args), *call.kwargs.items()):
        for leaf in tree_leaves(value):
            yield name, leaf


def _is_given(function: Any, name: str, value: Any) -> bool:
    if is_public(value):
        return False
    if not is_number(value):
        return isinstance(value, ScriptConstant | np.ndarray)
    is_axis = type(value) is int and name_of(function) in _STRUCTURAL
    return not is_axis and value != _defaults(function).get(name)


@lru_cache(maxsize=64)
def _defaults(function: Any) -> dict[str, Any]:
    """The default arguments by name; empty for functions without a signature, such as those written in C."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


def _fingerprint(node: Any, known: dict[int, int]) -> Any:
    if isinstance(node, Column | Output):
        yield (type(node).__name__, node.place)
    elif isinstance(node, list | tuple):
        yield len(node)
        for item in node:
            yield from _fingerprint(item, known)
    elif isinstance(node, dict):
        for key, item in node.items():
            yield key
            yield from _fingerprint(item, known)
    elif not isinstance(node, Call):
        yield appearance(node)
    elif id(node) in known:
        yield ("again", known[id(node)])
    else:
        known[id(node)] = len(known)
        yield (node.function, node.part)
        yield from _fingerprint(node.args, known)
        yield from _fingerprint(node.kwargs, known)


@dataclass(frozen=True, repr=False)
class ScriptLoss:
    """The loss of one row, given its outputs and the column (tensor) of the batch that the loss uses.

    A `criterion` is summed over the row, as everywhere in the kernel. Without one, the script's operations run on the
    row as a batch of one, so a mean over the batch is the row's own loss, independent of the batch size.
    """

    program: RowProgram
    column: int
    criterion: Loss | None

    @classmethod
    def of(cls, program: RowProgram, criterion: Loss | None, target: int) -> ScriptLoss:
        used = {leaf.place for leaf in program.leaves if isinstance(leaf, Column)}
        if len(used) > 1:
            raise UsageError(f"a loss may use one tensor of the batch besides the outputs, got {len(used)}.")
        return cls(program, used.pop() if used else target, criterion)

    def __call__(self, outputs: Any, target: Tensor) -> Tensor:
        """The loss of a batch of one, or NaN if its label is unusable: such a row is ignored."""
        if self.criterion is None:
            each = [x if x.ndim else x.unsqueeze(0) for x in tree_flatten(outputs)[0]]
            return self.program.of_batch(self._leaves(each, target)).reshape(())
        loss, usable = RowLoss.of(self.criterion)(outputs, target)
        return torch.where(usable, loss, torch.nan)

    def of_rows(self, outputs: list[Tensor], spec: TreeSpec, column: Tensor) -> Tensor:
        """The loss of each row, computed under `vmap`."""

        def of_one(outputs: list[Tensor], target: Tensor) -> Tensor:
            with TensorTracker(of_this_pass):
                return self(spec.unflatten([x.unsqueeze(0) for x in outputs]), target.unsqueeze(0))

        with one_pass() as of_this_pass:
            return vmap(of_one)(outputs, column)

    def check(self, outputs: list[Tensor], spec: TreeSpec, column: Tensor, loss_reduction: str) -> None:
        """Raises an error for a loss that mixes rows or differs from the declared one. All values are synthetic."""
        values = self._leaves(outputs, column)
        if self.criterion is not None:
            self._check_criterion(values, spec.unflatten(outputs), column)
            return
        reduction = self.program.reduction(values)
        if reduction != loss_reduction:
            raise UsageError(f"loss_reduction is {loss_reduction!r}, but the loss is the {reduction} over the batch.")

    def _check_criterion(self, values: list[Tensor], outputs: Any, column: Tensor) -> None:
        try:
            computed, declared = self.program.of_batch(values), self.criterion(outputs, column)  # type: ignore[misc]
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise UsageError(f"the criterion fails on synthetic outputs: {one_line(error)}") from None
        if not torch.allclose(computed.sum(), declared.sum(), rtol=1e-3, atol=1e-5):
            raise UsageError("the loss must be criterion(outputs, target) with the criterion passed to make_private.")

    def _leaves(self, outputs: list[Tensor], column: Tensor) -> list[Tensor]:
        return [outputs[leaf.place] if isinstance(leaf, Output) else column for leaf in self.program.leaves]
