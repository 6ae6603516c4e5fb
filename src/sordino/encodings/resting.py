"""Coordinates that rest: a gradient of zero is not enough, because an optimizer moves by what it remembers too.

Momentum, Adam's moments and weight decay all move a coordinate whose gradient is zero. So an encoding says which
coordinates rest, and the optimizer's step is taken back there, with what it remembers of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sordino.kernel.encoding import Encoding, State
from sordino.kernel.states import Layout


@dataclass(frozen=True)
class Rest:
    """Which coordinates are `frozen`, shape (d,), and which of them rest at zero, in place of where they were.

    Of two, who leaves a coordinate where it was is not overruled by who would prune it.

    >>> first, second = Rest.of(torch.tensor([True, False])), Rest.of(torch.tensor([False, True]), pruned=True)
    >>> (first | second).frozen, (first | second).pruned
    (tensor([True, True]), tensor([False,  True]))
    """

    frozen: Tensor = field(repr=False)
    pruned: Tensor = field(repr=False)

    @classmethod
    def of(cls, frozen: Tensor, *, pruned: bool = False) -> Rest:
        """All of them rest in the same way."""
        return cls(frozen, frozen if pruned else torch.zeros_like(frozen))

    def __or__(self, other: Rest) -> Rest:
        left = (self.frozen & ~self.pruned) | (other.frozen & ~other.pruned)
        return Rest(self.frozen | other.frozen, (self.pruned | other.pruned) & ~left)

    @torch.no_grad()
    def at_rest(self, moving: Mapping[str, Tensor], still: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
        """`moving`, but `still` or zero where a coordinate rests."""
        frozen, pruned = layout.split(self.frozen), layout.split(self.pruned)
        return {
            name: value.where(~frozen[name], still[name].masked_fill(pruned[name], 0.0))
            for name, value in moving.items()
        }


@runtime_checkable
class Resting(Protocol):
    """An encoding that knows which coordinates rest. What is None, or no such encoding, lets all of them move."""

    def rest(self, state: State) -> Rest | None: ...


def rest_of(encoding: Encoding, state: State) -> Rest | None:
    """Which coordinates rest after a step that left this state."""
    return encoding.rest(state) if isinstance(encoding, Resting) else None


def both(first: Rest | None, second: Rest | None) -> Rest | None:
    """What rests under either of two encodings."""
    if first is None or second is None:
        return first or second
    return first | second


@torch.no_grad()
def step_at_rest(optimizer: torch.optim.Optimizer, model: nn.Module, rest: Rest | None) -> None:
    """The optimizer's step, after which a coordinate that rests is bit for bit where it was, or zero if it is pruned.

    What the optimizer remembers of it is zero too: after a rest, nothing pulls.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> before, optimizer = model.weight.detach().clone(), torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.1)
    >>> model.weight.grad = torch.ones(1, 2)
    >>> step_at_rest(optimizer, model, Rest.of(torch.tensor([True, False])))
    >>> model.weight == before
    tensor([[ True, False]])
    """
    if rest is None or not bool(rest.frozen.any()):
        optimizer.step()
        return
    trained = {name: x for name, x in model.named_parameters() if x.requires_grad}
    before = {name: x.detach().clone() for name, x in trained.items()}
    optimizer.step()
    layout = Layout.of(model)
    frozen = layout.split(rest.frozen)
    for name, value in rest.at_rest(trained, before, layout).items():
        trained[name].copy_(value)
        for what, kept in optimizer.state[trained[name]].items():
            if isinstance(kept, Tensor) and kept.shape == value.shape and what != "step":
                kept.masked_fill_(frozen[name], 0.0)
