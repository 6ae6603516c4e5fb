"""Freezing of parameters, by name or in stages by magnitude, and optimizer steps that leave them unchanged.

Coordinates that rest: a gradient of zero is not enough, because an optimizer moves by what it remembers too.

Momentum, Adam's moments and weight decay all move a coordinate whose gradient is zero. So an encoding says which
coordinates rest, and the optimizer's step is taken back there, with what it remembers of them.

Stage-wise freezing: as training goes on, the smallest weights rest, and no more noise falls on them.

Xu and Chen (2026), appendix G, freeze in stages by magnitude and end with 77 % of LeNet frozen. Their algorithm's lines
did not come down to us, so stages and their shares are ours.

Freezing: parameters that add nothing, get no noise, and stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.encodings.codecs import MaskCodec
from sordino.errors import UsageError
from sordino.kernel.encoding import Encoding, State
from sordino.kernel.randomness import Stream
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
class FreezingEncoding(Protocol):
    """An encoding that knows which coordinates rest. What is None, or no such encoding, lets all of them move."""

    def rest(self, state: State) -> Rest | None: ...


def rest_of(encoding: Encoding, state: State) -> Rest | None:
    """Which coordinates rest after a step that left this state."""
    return encoding.rest(state) if isinstance(encoding, FreezingEncoding) else None


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


@runtime_checkable
class Together(Protocol):
    """Which coordinates are ranked, and frozen, together."""

    def groups(self, layout: Layout) -> Tensor:
        """The number of each coordinate's group, shape (d,), from 0 on without a gap."""
        ...


@dataclass(frozen=True)
class Weights:
    """Every weight by itself: unstructured.

    >>> Weights().groups(Layout(("weight", "bias"), ((2, 2), (2,))))
    tensor([0, 1, 2, 3, 4, 5])
    """

    def groups(self, layout: Layout) -> Tensor:
        return torch.arange(layout.size)


@dataclass(frozen=True)
class Neurons:
    """All weights that make one output of a layer, its bias among them.

    >>> Neurons().groups(Layout(("0.weight", "0.bias", "1.weight"), ((2, 2), (2,), (1, 2))))
    tensor([0, 0, 1, 1, 0, 1, 2, 2])
    """

    def groups(self, layout: Layout) -> Tensor:
        first: dict[tuple[str, int], int] = {}
        parts, count = [], 0
        for name, shape, size in zip(layout.names, layout.shapes, layout.sizes, strict=True):
            outputs = shape[0] if shape else 1
            layer = name.rpartition(".")[0], outputs  # a parameter of another length is of other neurons
            if layer not in first:
                first[layer], count = count, count + outputs
            parts.append(first[layer] + torch.arange(outputs).repeat_interleave(size // outputs))
        return torch.cat(parts)


def equal_stages(steps: int, *, stages: int = 3) -> tuple[int, ...]:
    """Steps that cut a training of `steps` into equal parts. What is too short for so many has fewer.

    >>> equal_stages(400), equal_stages(1)
    ((100, 200, 300), (0, 1))
    """
    return tuple(sorted({round(steps * stage / (stages + 1)) for stage in range(1, stages + 1)}))


@dataclass(frozen=True)
class FreezeByMagnitude:
    """From each step in `stages` on, a larger share of the parameters of `model` rests: `final` from the last on.

    The share rises by the same amount from stage to stage. Those with the least |weight| (mean over a group, if they go
    together) are frozen where they are or, if pruned, at zero. What is frozen stays frozen. `model` is the one that the
    run trains; it is read when a stage begins. Make it with `Freeze.by_magnitude`.

    Guarantee: parameters are post-processing of past releases, and so are masks made from them: they cost nothing (see
    `codecs`). A frozen coordinate takes no part in the clip, gets no noise, and is not moved (see `resting`).

    >>> model = nn.Linear(4, 1, bias=False)
    >>> with torch.no_grad():
    ...     weights = model.weight.copy_(torch.tensor([[3.0, -1.0, 0.5, -4.0]]))
    >>> freeze = FreezeByMagnitude(model, stages=(10, 20), final=0.5)
    >>> [freeze.share(step) for step in (9, 10, 20)]
    [0.0, 0.25, 0.5]
    >>> freeze.codec(freeze.init(Layout.of(model)), 20, Stream(bytes(32))).keep
    tensor([ True, False, False,  True])
    """

    model: nn.Module = field(repr=False, compare=False)
    stages: Sequence[int]
    final: float
    together: Together = field(default_factory=Weights)
    prune: bool = False

    def __post_init__(self) -> None:
        validate.instance(nn.Module, model=self.model)
        validate.instance(Sequence, stages=self.stages)
        validate.instance(Together, together=self.together)
        validate.instance(bool, prune=self.prune)
        stages = tuple(self.stages)
        object.__setattr__(self, "stages", stages)
        validate.count(at_least=0, **{f"stages[{number}]": step for number, step in enumerate(stages)})
        if not stages or list(stages) != sorted(set(stages)):
            raise UsageError(f"stages must be rising steps, at least one, got {validate.shown(stages)}.")
        validate.between(0, 1, low_open=True, high_open=True, final=self.final)

    def share(self, step: int) -> float:
        """How much is frozen in this step."""
        return self.final * sum(stage <= step for stage in self.stages) / len(self.stages)

    def init(self, layout: Layout) -> State:
        if Layout.of(self.model) != layout:
            raise UsageError("freezing needs the model that is trained, got one with other trainable parameters.")
        return {"keep": torch.ones(layout.size, dtype=torch.bool)}

    def codec(self, state: State, step: int, randomness: Stream) -> MaskCodec:
        keep = self._smallest_frozen(state["keep"], step) if step in self.stages else state["keep"]
        return MaskCodec(keep, learn=lambda released: {"keep": keep})

    def rest(self, state: State) -> Rest:
        return Rest.of(~state["keep"], pruned=self.prune)

    @torch.no_grad()
    def _smallest_frozen(self, keep: Tensor, step: int) -> Tensor:
        groups = self.together.groups(Layout.of(self.model)).to(keep.device)
        count = int(groups.max()) + 1
        weights = torch.cat([x.flatten() for x in self.model.parameters() if x.requires_grad]).double()
        magnitudes = weights.new_zeros(count).scatter_reduce(0, groups, weights.abs(), "mean", include_self=False)
        magnitudes[groups[~keep]] = -1.0  # smaller than any: what is frozen stays frozen
        kept = torch.ones(count, dtype=torch.bool, device=keep.device)
        kept[magnitudes.argsort(stable=True)[: round(self.share(step) * count)]] = False
        return kept[groups]


@dataclass(frozen=True)
class Freeze:
    """Keeps the parameters of these names where they are. Their gradients take no part in the clip.

    A parameter that never moves is cheaper with `requires_grad` off; this is for combining with other encodings.

    >>> layout = Layout(("weight", "bias"), ((2, 2), (2,)))
    >>> Freeze(["weight"]).init(layout)["keep"]
    tensor([False, False, False, False,  True,  True])
    """

    names: tuple[str, ...]

    def __init__(self, names: Sequence[str]) -> None:
        validate.instance(Sequence, names=names)
        object.__setattr__(self, "names", tuple(names))

    @classmethod
    def by_magnitude(
        cls,
        model: nn.Module,
        *,
        stages: Sequence[int],
        final: float = 0.77,
        together: Together | None = None,
        prune: bool = False,
    ) -> FreezeByMagnitude:
        """Freezes the smallest weights of the model that is trained, more of them in each stage.

        >>> Freeze.by_magnitude(nn.Linear(4, 3), stages=(100, 200))
        FreezeByMagnitude(stages=(100, 200), final=0.77, together=Weights(), prune=False)
        """
        return FreezeByMagnitude(model, stages, final, together or Weights(), prune)

    def init(self, layout: Layout) -> State:
        for name in self.names:
            if name not in layout.names:
                raise UsageError(f"names must be of trainable parameters, got {validate.option(name)}.")
        frozen = [torch.tensor([name in self.names]) for name in layout.names]
        parts = [is_frozen.expand(size) for is_frozen, size in zip(frozen, layout.sizes, strict=True)]
        return {"keep": ~torch.cat(parts)}

    def codec(self, state: State, step: int, randomness: Stream) -> MaskCodec:
        return MaskCodec(state["keep"], learn=lambda released: state)

    def rest(self, state: State) -> Rest:
        return Rest.of(~state["keep"])
