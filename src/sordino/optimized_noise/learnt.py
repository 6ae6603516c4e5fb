"""Sources that follow training: past releases, which are paid for, and public rows at the parameters of today."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.encoding import Anchors, State
from sordino.kernel.states import Dense, Layout, Private
from sordino.optimized_noise.running_means import RunningMeans
from sordino.optimized_noise.sources import Look, Magnitudes

_ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class FromReleases:
    """Running means of the squares of past releases, less the mean square of the noise in them. It costs nothing.

    A mean of `n` squares of noise is known to about sqrt(2 / n) of itself. Whatever lies below that could as well be
    noise, and is raised to it: where there is nothing but noise, all coordinates are alike. So they are in the first
    step. Each release counts `memory` times as much as the one after it.

    >>> from sordino.kernel.randomness import Stream
    >>> source, layout = FromReleases(memory=0.5), Layout(("w",), ((2,),))
    >>> look = Look(1, Stream(bytes(32)), lambda each: each)
    >>> state = source.init(layout)
    >>> used = source.magnitudes(state, look)
    >>> state = source.update(state, used, Private(torch.tensor([3.0, 1.0]).double(), layout, noise_square=1.0))
    >>> source.magnitudes(state, look).squares
    tensor([8.0000, 1.4142], dtype=torch.float64)
    """

    memory: float = 0.99

    def __post_init__(self) -> None:
        RunningMeans(self.memory)

    def init(self, layout: Layout) -> State:
        return RunningMeans(self.memory).init(layout)

    def magnitudes(self, state: State, look: Look) -> Magnitudes:
        means = RunningMeans(self.memory).read(state)
        if means is None:
            return Magnitudes(torch.ones_like(state["sum"]), torch.ones_like(state["sum"]))
        known_to = means.noise * (2 / means.releases).sqrt()
        squares = or_flat((means.value - means.noise).maximum(known_to))
        return Magnitudes(squares.sqrt(), squares)

    def update(self, state: State, used: Magnitudes, released: Private) -> State:
        return RunningMeans(self.memory).added(state, released.value.square(), released.noise_square)


@dataclass(frozen=True)
class FromPublicRows:
    """Mean |g| and mean g^2 of public rows at the parameters of today, computed anew every `every` steps.

    `anchors` are as for a public subspace: `PublicGradients`, or whatever gives gradients of rows declared public. They
    go through the step's codec, so that they are in the coordinates that noise falls on.
    """

    anchors: Anchors = field(repr=False)
    every: int = 1

    def __post_init__(self) -> None:
        validate.count(every=self.every)

    def init(self, layout: Layout) -> State:
        ones = torch.ones(layout.size, dtype=torch.float64)
        return {"weights": ones, "squares": ones}

    def magnitudes(self, state: State, look: Look) -> Magnitudes:
        if look.step % self.every:
            return Magnitudes(state["weights"], state["squares"])
        weights, squares, number = torch.zeros_like(state["weights"]), torch.zeros_like(state["squares"]), 0
        public = self.anchors(look.step, look.randomness.named("anchors"))
        for rows in public.rows(_ROWS_AT_A_TIME):
            for encoded in look.encode(Dense(rows, public.layout)).rows(_ROWS_AT_A_TIME):
                if encoded.shape[1] != len(weights):
                    raise UsageError(f"anchors must have {len(weights)} coordinates, got {encoded.shape[1]}.")
                weights += encoded.double().abs().sum(dim=0)
                squares += encoded.double().square().sum(dim=0)
                number += len(encoded)
        return Magnitudes(or_flat(weights / max(1, number)), or_flat(squares / max(1, number)))

    def update(self, state: State, used: Magnitudes, released: Private) -> State:
        return {"weights": used.weights, "squares": used.squares}


def or_flat(values: Tensor) -> Tensor:
    """Where nothing has any size, as in a network that is dead, no coordinate is preferred."""
    return values if bool((values != 0).any()) else torch.ones_like(values)
