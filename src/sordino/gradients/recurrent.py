"""The rule for per-example gradients of recurrent layers, and their initial state inside `vmap`.

All steps of a recurrent layer are one operation for the tape. Hidden states are to its weights what places are to the
weight of a linear layer. `unrolled` replaces torch's layers and cells by operations that the tape knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode, wrap_torch_function

from sordino.gradients.blocks import Block
from sordino.gradients.layers import LinearOperation
from sordino.gradients.recurrent_cells import RELU, TANH, Cell, CellWeights, Gru, Lstm
from sordino.gradients.rowwise import apply
from sordino.gradients.rules import Tag
from sordino.gradients.views import Name


def _seen_by_modes(
    cell: Cell, projected: Tensor, initial: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> tuple[Tensor, ...]:
    return projected, initial, weight


@wrap_torch_function(_seen_by_modes)
def recur(
    cell: Cell, projected: Tensor, initial: Tensor, weight: Tensor, bias: Tensor | None, projection: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The hidden states after each step, and the last state. Overwrites `projected`, the input's part of the gates.

    Axes: sequence, step, feature. The state of an LSTM is its hidden state and its cell state, concatenated.
    """
    outputs, last, *_ = _unrolled(cell, weight, bias, projection, projected, initial, None)
    return outputs, last


@dataclass(frozen=True)
class Recurrence:
    """The rule of `recur`: at each step the gates get W h + b, and some LSTMs project their output."""

    names: tuple[Name | None, Name | None, Name | None]
    cell: Cell
    gates: int
    features: int

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Recurrence:
        names = name_of(arguments["weight"]), name_of(arguments["bias"]), name_of(arguments["projection"])
        return cls(names, arguments["cell"], *arguments["weight"].shape)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Runs all steps. The tagged tensor is a zero that is added to W h + b, and to the projection, at each step."""
        cell, projected, initial, weight, bias, projection = arguments.values()
        added = self.gates + (0 if projection is None else len(projection))
        tagged = tag(projected.new_zeros(()).expand(*projected.shape[:2], added))
        outputs, last, *result = _unrolled(cell, weight, bias, projection, projected, initial, tagged)
        return (outputs, last), cell.multiplied(_weights(weight, bias, projection), *result)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        hidden, output = saved[..., : self.features], saved[..., self.features :]
        by_gates, by_output = output_gradient[..., : self.gates], output_gradient[..., self.gates :]
        weight, bias = LinearOperation(self.names[:2]).blocks(hidden, by_gates)
        return (
            weight,
            bias,
            LinearOperation((self.names[2], None)).blocks(output, by_output)[0] if self.names[2] else None,
        )


def _unrolled(*given: Any) -> tuple[Tensor, ...]:
    return cast(tuple[Tensor, ...], apply(_UnrollFunction, *given))


class _UnrollFunction(torch.autograd.Function):
    """Hidden states, last state, and values saved for the backward pass. No weight gets a gradient.

    `tagged` is the zero that stands for the part that the weights add: it gets the gradient by that part.
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
        with torch._C.DisableTorchFunction():  # the tape need not see the operations of each step
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
        """Runs the sequences of all rows as one batch. A cell treats each sequence alone."""
        if any(axis is not None for axis in axes[1:4]):
            raise RuntimeError("the weights of a recurrent layer differ from row to row.")  # rows are then done singly
        of_rows = zip(tensors[3:], axes[4:], strict=True)
        result = _unrolled(cell, *tensors[:3], *(_folded(x, axis, info.batch_size) for x, axis in of_rows))
        return tuple(x.reshape(info.batch_size, -1, *x.shape[1:]) for x in result), 0


def _folded(x: Tensor | None, axis: int | None, rows: int) -> Tensor | None:
    """The sequences of all rows along one axis."""
    if x is None:
        return None
    return (x.expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)).flatten(0, 1)


def _weights(weight: Tensor, bias: Tensor | None, projection: Tensor | None) -> CellWeights:
    return CellWeights(weight, weight.new_zeros(len(weight)) if bias is None else bias, projection)


_LAYERS: dict[Any, Cell] = {torch.lstm: Lstm(), torch.gru: Gru(), torch.rnn_tanh: TANH, torch.rnn_relu: RELU}


def unrolled(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], tuple[Tensor, ...] | Tensor] | None:
    """A call of a recurrent layer or cell as operations that the tape knows, or None. Packed sequences give None."""
    if kwargs or function not in _RECURRENT:
        return None
    if function in _STEPS:
        return partial(_STEPS[function], *args)
    is_packed = not isinstance(args[3], bool)
    return None if is_packed else partial(_layers, _LAYERS[function], *args)


def _layers(
    cell: Cell,
    x: Tensor,
    initial: Tensor | tuple[Tensor, Tensor],
    weights: list[Tensor],
    has_bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """The output and the last states of a stack of layers, as torch returns them."""
    parts = (initial,) if isinstance(initial, Tensor) else initial
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    last = []
    x = x if batch_first else x.transpose(0, 1)
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            own = weights[each * number : each * (number + 1)]
            inputs = x.flip(1) if direction else x
            initial_state = torch.cat([part[number] for part in parts], dim=1)
            output, end = _one_direction(cell, inputs, initial_state, own, has_bias)
            outputs.append(output.flip(1) if direction else output)
            last.append(end)
        x = torch.cat(outputs, dim=2) if bidirectional else outputs[0]
        if layer < layers - 1:
            x = F.dropout(x, dropout, training)
    ends = torch.split(torch.stack(last), [part.shape[2] for part in parts], dim=2)
    return x if batch_first else x.transpose(0, 1), *ends


def _one_direction(
    cell: Cell, x: Tensor, initial: Tensor, weights: list[Tensor], has_bias: bool
) -> tuple[Tensor, Tensor]:
    """Runs one layer in one direction. The input of all steps is projected at once."""
    of_input, of_hidden, *rest = weights
    biases, projection = (rest[:2], rest[2:]) if has_bias else ((None, None), rest)
    projected = F.linear(x, of_input, biases[0])
    return recur(cell, projected, initial, of_hidden, biases[1], projection[0] if projection else None)


def _lstm_step(x: Tensor, state: tuple[Tensor, Tensor], *weights: Any) -> tuple[Tensor, Tensor]:
    hidden, memory = state
    i, f, g, o = torch.add(*_projections(x, hidden, *weights)).chunk(4, dim=1)
    memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
    return o.sigmoid() * memory.tanh(), memory


def _gru_step(x: Tensor, hidden: Tensor, *weights: Any) -> Tensor:
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (side.chunk(3, dim=1) for side in _projections(x, hidden, *weights))
    candidate = torch.tanh(x_n + (x_r + h_r).sigmoid() * h_n)
    return torch.lerp(candidate, hidden, (x_z + h_z).sigmoid())


def _tanh_step(x: Tensor, hidden: Tensor, *weights: Any) -> Tensor:
    return torch.add(*_projections(x, hidden, *weights)).tanh()


def _relu_step(x: Tensor, hidden: Tensor, *weights: Any) -> Tensor:
    return torch.add(*_projections(x, hidden, *weights)).relu()


def _projections(
    x: Tensor,
    hidden: Tensor,
    of_input: Tensor,
    of_hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return F.linear(x, of_input, input_bias), F.linear(hidden, of_hidden, hidden_bias)


_STEPS: dict[Any, Any] = {
    torch.lstm_cell: _lstm_step,
    torch.gru_cell: _gru_step,
    torch.rnn_tanh_cell: _tanh_step,
    torch.rnn_relu_cell: _relu_step,
}
_RECURRENT = frozenset((*_LAYERS, *_STEPS))


class OwnInitialState(TorchFunctionMode):
    """While active, the initial state of a recurrent operation is one copy per row. `zero` is a zero of the row.

    The default state is one tensor of zeros that all rows share, and the kernels write the first step into it.
    """

    def __init__(self, zero: Tensor) -> None:
        super().__init__()
        self._zero = zero

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function not in _RECURRENT:
            return function(*args, **(kwargs or {}))
        return function(args[0], self._owned(args[1]), *args[2:], **(kwargs or {}))

    def _owned(self, state: Any) -> Any:
        if isinstance(state, (tuple, list)):
            return type(state)(self._owned(part) for part in state)
        return state + self._zero.to(state.dtype)
