"""All steps of a recurrent layer as one operation: its weights see the hidden states as a linear layer sees places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import wrap_torch_function

from sordino.gradients.blocks import Block
from sordino.gradients.cells import Cell, Weights
from sordino.gradients.linear import Linear
from sordino.gradients.rowwise import apply
from sordino.gradients.rules import Tag


def _seen_by_modes(
    cell: Cell, projected: Tensor, initial: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> tuple[Tensor, ...]:
    return projected, initial, weight


@wrap_torch_function(_seen_by_modes)
def recur(
    cell: Cell, projected: Tensor, initial: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The hidden states after each step and the last state, from what the input adds, which is used up.

    Axes: sequence, step, feature. The state of an LSTM is its hidden state and its memory, side by side.
    """
    outputs, last, *_ = _unrolled(cell, weight, bias, projection, projected, initial, None)
    return outputs, last


@dataclass(frozen=True)
class Recurrence:
    """The rule of `recur`: at every step the gates get W h + b, and some LSTMs project what they show."""

    names: tuple[str | None, str | None, str | None]
    cell: Cell
    gates: int
    features: int

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Recurrence:
        names = name_of(arguments["weight"]), name_of(arguments["bias"]), name_of(arguments["projection"])
        return cls(names, arguments["cell"], *arguments["weight"].shape)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Tags a zero beside what the weights add at every step."""
        cell, projected, initial, weight, bias, projection = arguments.values()
        added = self.gates + (0 if projection is None else len(projection))
        tagged = tag(projected.new_zeros(()).expand(*projected.shape[:2], added))
        outputs, last, *result = _unrolled(cell, weight, bias, projection, projected, initial, tagged)
        return (outputs, last), cell.multiplied(_weights(weight, bias, projection), *result)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        hidden, shown = saved[..., : self.features], saved[..., self.features :]
        by_gates, by_shown = output_gradient[..., : self.gates], output_gradient[..., self.gates :]
        weight, bias = Linear(self.names[:2]).blocks(hidden, by_gates)
        return weight, bias, Linear((self.names[2], None)).blocks(shown, by_shown)[0] if self.names[2] else None


def _unrolled(*given: Any) -> tuple[Tensor, ...]:
    return cast(tuple[Tensor, ...], apply(_Unrolled, *given))


class _Unrolled(torch.autograd.Function):
    """Hidden states, last state, and what the way back needs. `tagged` stands for what the weights add.

    It only gets the gradient, and no weight does.
    """

    @staticmethod
    def forward(
        cell: Cell,
        weight: Tensor,
        bias: Tensor | None,
        projection: Tensor | None,
        projected: Tensor,
        initial: Tensor,
        tagged: Tensor | None,
    ) -> tuple[Tensor, ...]:
        with torch._C.DisableTorchFunction():  # nobody has to watch every step
            states, *kept = cell.forwards(projected, initial, _weights(weight, bias, projection))
            return states[:, 1:, : weight.shape[1]].detach(), states[:, -1].detach(), states, *kept

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], result: tuple[Tensor, ...]) -> None:
        context.cell = inputs[0]
        context.save_for_backward(*inputs[1:4], *result[2:])
        context.mark_non_differentiable(*result[2:])
        context.set_materialize_grads(False)

    @staticmethod
    @once_differentiable
    def backward(
        context: Any, by_outputs: Tensor | None, by_last: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        weight, bias, projection, states, *kept = context.saved_tensors
        nothing = states.new_zeros(())
        by_outputs = nothing.expand_as(states[:, 1:, : weight.shape[1]]) if by_outputs is None else by_outputs
        by_last = nothing.expand_as(states[:, 0]) if by_last is None else by_last
        weights = _weights(weight, bias, projection)
        projected, weighted, initial = context.cell.backwards(by_outputs, by_last, weights, states, *kept)
        return None, None, None, None, projected, initial, weighted if context.needs_input_grad[6] else None

    @staticmethod
    def vmap(
        info: Any, axes: tuple[int | None, ...], cell: Cell, *tensors: Tensor | None
    ) -> tuple[tuple[Tensor, ...], int]:
        """All rows at once: a row is some more sequences for the cell, in which sequences never meet."""
        if any(axis is not None for axis in axes[1:4]):
            raise RuntimeError("the weights of a recurrent layer differ from row to row.")  # the other way answers
        of_rows = zip(tensors[3:], axes[4:], strict=True)
        result = _unrolled(cell, *tensors[:3], *(_folded(x, axis, info.batch_size) for x, axis in of_rows))
        return tuple(x.reshape(info.batch_size, -1, *x.shape[1:]) for x in result), 0


def _folded(x: Tensor | None, axis: int | None, rows: int) -> Tensor | None:
    """The sequences of all rows, one after another."""
    if x is None:
        return None
    return (x.expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)).flatten(0, 1)


def _weights(weight: Tensor, bias: Tensor | None, projection: Tensor | None) -> Weights:
    return Weights(weight, weight.new_zeros(len(weight)) if bias is None else bias, projection)
