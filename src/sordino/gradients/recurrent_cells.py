"""The cells of recurrent layers, for many sequences at once: all forward steps, and all backward steps.

Axes: sequence, step, feature. `projected` is the part of the gates that the input adds. `states` has one step more,
with the initial state first; the state of an LSTM is its hidden state and its cell state, concatenated. In the backward
pass, the derivatives of the activations of all steps are computed at once, and then multiplied in place, step by step,
to give gradients.

Guarantee: a sequence never affects another. All operations are elementwise, or products with a weight from the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class CellWeights(NamedTuple):
    """The weight of the hidden state, its bias, and the projection of an LSTM's output to fewer features, or None."""

    hidden: Tensor
    bias: Tensor
    projection: Tensor | None


class Gradients(NamedTuple):
    """Gradients by the input's part of the gates, by the weights' part at each step, and by the initial state."""

    projected: Tensor
    weighted: Tensor
    initial: Tensor


class Cell(Protocol):
    """One kind of recurrence."""

    def forwards(self, projected: Tensor, initial: Tensor, weights: CellWeights) -> tuple[Tensor, ...]:
        """The states, and other values for the backward pass. `projected` may be overwritten by gates."""
        ...

    def backwards(
        self, by_outputs: Tensor, by_last: Tensor, weights: CellWeights, states: Tensor, *kept: Tensor
    ) -> Gradients:
        """Gradients, from those by the hidden state after each step and by the last state."""
        ...

    def multiplied(self, weights: CellWeights, states: Tensor, *kept: Tensor) -> Tensor:
        """The factors of the weights at each step, concatenated."""
        ...


@dataclass(frozen=True)
class Elman:
    """The cell h' = f(x + W h + b)."""

    activate_: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]

    def forwards(self, projected: Tensor, initial: Tensor, weights: CellWeights) -> tuple[Tensor, ...]:
        states = _new_states(initial, projected)
        torch.add(projected, weights.bias, out=states[:, 1:])
        transposed = weights.hidden.T
        for h, next_h in _moves(states):
            self.activate_(next_h.addmm_(h, transposed))
        return (states,)

    def backwards(
        self, by_outputs: Tensor, by_last: Tensor, weights: CellWeights, states: Tensor, *kept: Tensor
    ) -> Gradients:
        gates = self.slope(states[:, 1:])
        outside, by_h = _outside(by_outputs, by_last)
        for step, from_outside in _reversed(gates.unbind(1), outside):
            by_h = torch.addmm(from_outside, step.mul_(by_h), weights.hidden)
        return Gradients(gates, gates, by_h)

    def multiplied(self, weights: CellWeights, states: Tensor, *kept: Tensor) -> Tensor:
        return states[:, :-1]


TANH = Elman(torch.tanh_, lambda h: 1 - h * h)
RELU = Elman(torch.relu_, lambda h: (h > 0).to(h.dtype))


@dataclass(frozen=True)
class Gru:
    """The cell h' = n + z (h - n), with r and z the sigmoids of x + W h + b, and n = tanh(x_n + r (W_n h + b_n))."""

    def forwards(self, projected: Tensor, initial: Tensor, weights: CellWeights) -> tuple[Tensor, ...]:
        """The states, the gates r, z, n, and W_n h + b_n."""
        width = initial.shape[1]
        states, gates = _new_states(initial, projected), _own(projected)
        candidates = torch.empty_like(gates[:, :, :width])
        transposed = weights.hidden.T
        for (h, next_h), step, candidate in zip(_moves(states), gates.unbind(1), candidates.unbind(1), strict=True):
            weighted = torch.addmm(weights.bias, h, transposed)
            candidate.copy_(weighted[:, 2 * width :])
            step[:, : 2 * width].add_(weighted[:, : 2 * width]).sigmoid_()
            r, z, n = step.chunk(3, dim=1)
            torch.lerp(n.addcmul_(r, candidate).tanh_(), h, z, out=next_h)
        return states, gates, candidates

    def backwards(
        self, by_outputs: Tensor, by_last: Tensor, weights: CellWeights, states: Tensor, *kept: Tensor
    ) -> Gradients:
        (r, z, n), candidates = kept[0].chunk(3, dim=2), kept[1]
        weighted = torch.empty_like(kept[0])
        by_r, by_z, by_candidate = weighted.chunk(3, dim=2)
        by_n = (1 - z).mul_(1 - n * n)
        torch.mul(by_n, r, out=by_candidate)
        torch.mul(by_candidate, candidates, out=by_r).mul_(1 - r)
        torch.sub(states[:, :-1], n, out=by_z).mul_(z).mul_(1 - z)
        outside, by_h = _outside(by_outputs, by_last)
        for step, step_n, step_z, from_outside in _reversed(weighted.unbind(1), by_n.unbind(1), z.unbind(1), outside):
            step.view(len(step), 3, -1).mul_(by_h[:, None])
            step_n.mul_(by_h)
            by_h = torch.addcmul(from_outside, by_h, step_z).addmm_(step, weights.hidden)
        return Gradients(torch.cat((by_r, by_z, by_n), dim=2), weighted, by_h)

    def multiplied(self, weights: CellWeights, states: Tensor, *kept: Tensor) -> Tensor:
        return states[:, :-1]


@dataclass(frozen=True)
class Lstm:
    """The cell c' = f c + i g and h' = o tanh(c'), with i, f, o the sigmoids and g the tanh of x + W h + b.

    With a projection P, h' = P (o tanh(c')).
    """

    def forwards(self, projected: Tensor, initial: Tensor, weights: CellWeights) -> tuple[Tensor, ...]:
        """The states, the gates i, f, g, o, and tanh(c')."""
        states, gates = _new_states(initial, projected), _own(projected).add_(weights.bias)
        hidden, memory = _parts(states, weights)
        width = memory.shape[2]
        squashed = torch.empty_like(gates[:, :, :width])
        transposed = weights.hidden.T
        for (h, next_h), (c, next_c), step, tanh_c in zip(
            _moves(hidden), _moves(memory), gates.unbind(1), squashed.unbind(1), strict=True
        ):
            step.addmm_(h, transposed)
            step[:, : 2 * width].sigmoid_()
            i, f, g, o = step.chunk(4, dim=1)
            torch.mul(f, c, out=next_c).addcmul_(i, g.tanh_())
            torch.tanh(next_c, out=tanh_c)
            if weights.projection is None:
                torch.mul(o.sigmoid_(), tanh_c, out=next_h)
            else:
                torch.mm(o.sigmoid_() * tanh_c, weights.projection.T, out=next_h)
        return states, gates, squashed

    def backwards(
        self, by_outputs: Tensor, by_last: Tensor, weights: CellWeights, states: Tensor, *kept: Tensor
    ) -> Gradients:
        (i, f, g, o), squashed = kept[0].chunk(4, dim=2), kept[1]
        weighted = torch.empty_like(kept[0])
        by_i, by_f, by_g, by_o = weighted.chunk(4, dim=2)
        torch.mul(g, i, out=by_i).mul_(1 - i)
        torch.mul(_parts(states, weights)[1][:, :-1], f, out=by_f).mul_(1 - f)
        torch.addcmul(i, g * g, i, value=-1, out=by_g)
        torch.mul(squashed, o, out=by_o).mul_(1 - o)
        by_squashed = torch.addcmul(o, squashed * squashed, o, value=-1)
        by_last_h, by_c = _parts(by_last, weights)
        outside, by_h = _outside(by_outputs, by_last_h)
        by_output = []
        for step, step_o, slope, forget, from_outside in _reversed(
            weighted.unbind(1), by_o.unbind(1), by_squashed.unbind(1), f.unbind(1), outside
        ):
            if weights.projection is not None:
                by_output.append(by_h)
                by_h = by_h @ weights.projection
            step_o.mul_(by_h)
            by_c = torch.addcmul(by_c, by_h, slope)
            step.view(len(step), 4, -1)[:, :3].mul_(by_c[:, None])
            by_c = by_c * forget
            by_h = torch.addmm(from_outside, step, weights.hidden)
        initial = torch.cat((by_h, by_c), dim=1)
        if weights.projection is None:
            return Gradients(weighted, weighted, initial)
        return Gradients(weighted, torch.cat((weighted, torch.stack(by_output[::-1], dim=1)), dim=2), initial)

    def multiplied(self, weights: CellWeights, states: Tensor, *kept: Tensor) -> Tensor:
        previous = _parts(states, weights)[0][:, :-1]
        if weights.projection is None:
            return previous
        return torch.cat((previous, kept[0].chunk(4, dim=2)[3] * kept[1]), dim=2)


def _new_states(initial: Tensor, projected: Tensor) -> Tensor:
    """Memory for the states of all steps, of which the first is set to `initial`."""
    states = initial.new_empty(len(initial), projected.shape[1] + 1, initial.shape[1])
    states[:, 0] = initial
    return states


def _own(projected: Tensor) -> Tensor:
    """A tensor that may be overwritten: the same memory, or a copy if sequences share memory."""
    return projected.contiguous().detach()


def _moves(states: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Pairs of each state and the next one."""
    return pairwise(states.unbind(1))


def _outside(by_outputs: Tensor, by_last: Tensor) -> tuple[list[Tensor], Tensor]:
    """Gradients by the hidden state from outside the recurrence: before each step, and after the last step."""
    *between, end = by_outputs.unbind(1)
    return [torch.zeros_like(end), *between], by_last + end


def _reversed(*sequences: tuple[Tensor, ...] | list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Zips the sequences, from the last step to the first."""
    return zip(*map(reversed, sequences), strict=True)


def _parts(states: Tensor, weights: CellWeights) -> tuple[Tensor, Tensor]:
    """The hidden state and the cell state of an LSTM."""
    features = weights.hidden.shape[1]
    return states[..., :features], states[..., features:]
