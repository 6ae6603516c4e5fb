"""Recurrent layers: written out for the tape, and inside `vmap` with an initial state that belongs to the row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sordino.gradients.cells import RELU, TANH, Cell, Gru, Lstm
from sordino.gradients.recurrence import recur

_LAYERS: dict[Any, Cell] = {torch.lstm: Lstm(), torch.gru: Gru(), torch.rnn_tanh: TANH, torch.rnn_relu: RELU}


def unrolled(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], tuple[Tensor, ...] | Tensor] | None:
    """A recurrent layer or cell in operations that the tape knows, or None. Packed sequences keep torch's own way."""
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
    """The output and the last states of a stack of layers, as torch answers them."""
    parts = (initial,) if isinstance(initial, Tensor) else initial
    directions = 2 if bidirectional else 1
    each = len(weights) // (layers * directions)
    last = []
    x = x if batch_first else x.transpose(0, 1)
    for layer in range(layers):
        outputs = []
        for way in range(directions):
            place = layer * directions + way
            own = weights[each * place : each * (place + 1)]
            inputs = x.flip(1) if way else x
            output, end = _one_way(cell, inputs, torch.cat([part[place] for part in parts], dim=1), own, has_bias)
            outputs.append(output.flip(1) if way else output)
            last.append(end)
        x = torch.cat(outputs, dim=2) if bidirectional else outputs[0]
        if layer < layers - 1:
            x = F.dropout(x, dropout, training)
    ends = torch.split(torch.stack(last), [part.shape[2] for part in parts], dim=2)
    return x if batch_first else x.transpose(0, 1), *ends


def _one_way(cell: Cell, x: Tensor, initial: Tensor, weights: list[Tensor], has_bias: bool) -> tuple[Tensor, Tensor]:
    """One layer in one direction: the input of all steps is projected at once."""
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
    """While active, the initial state of a recurrent operation is a copy per row. `zero` is a zero of each row.

    The default state is one tensor of zeros shared by all rows, and the kernels add the first step's values in place.
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
