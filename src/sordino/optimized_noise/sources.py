"""Sources of public weights for optimized noise: past releases, and public rows.

Where weights come from: how large gradients are in each coordinate, without a look at a private row.

Slides of optimised noise take them from all training examples, in every step and for nothing. What they tell about an
example is then in no epsilon. A source here sees past releases, rows declared public or tensors declared public, and no
signature has data in it. So noise and scales that follow it are post-processing of what has been paid for.

Running means of what was released, with how much noise is in them.

Sources that follow training: past releases, which are paid for, and public rows at the parameters of today.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.encoding import Anchors, State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Dense, Layout, PerExample, Private
from sordino.optimized_noise.costs import usable_weights


@dataclass(frozen=True, eq=False)
class Magnitudes:
    """Of each coordinate, how much noise hurts there (w), and the mean square of what a unit adds there (v)."""

    weights: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Look:
    """What a source may look at in a step, and there is nothing private in it. `encode` is the step's codec."""

    step: int
    randomness: Stream
    encode: Callable[[PerExample], PerExample]


@runtime_checkable
class Source(Protocol):
    """Says how large gradients are, and learns from what was released. Its state is saved with the checkpoint."""

    def init(self, layout: Layout) -> State: ...

    def magnitudes(self, state: State, look: Look) -> Magnitudes: ...

    def update(self, state: State, used: Magnitudes, released: Private) -> State:
        """`used` is what the step was made with, `released` what came of it."""
        ...


@dataclass(frozen=True)
class Flat:
    """All coordinates are alike: what to compare with.

    >>> source = Flat()
    >>> source.init(Layout(("w",), ((3,),)))["ones"]
    tensor([1., 1., 1.], dtype=torch.float64)
    """

    def init(self, layout: Layout) -> State:
        return {"ones": torch.ones(layout.size, dtype=torch.float64)}

    def magnitudes(self, state: State, look: Look) -> Magnitudes:
        return Magnitudes(state["ones"], state["ones"])

    def update(self, state: State, used: Magnitudes, released: Private) -> State:
        return state


@dataclass(frozen=True, eq=False, repr=False)
class Fixed:
    """Tensors declared public by being given here, or bought (`release_sensitivity`). Squares are those of weights.

    Weights below a millionth of the largest are raised to that (`usable_weights`).

    >>> Fixed(torch.tensor([2.0, 1.0]))
    Fixed(2 coordinates, 19bf23ecc6d9)
    """

    weights: Tensor
    squares: Tensor

    def __init__(self, weights: Tensor, squares: Tensor | None = None) -> None:
        object.__setattr__(self, "weights", usable_weights(weights).values)
        given = self.weights.square() if squares is None else usable_weights(squares).values
        if given.shape != self.weights.shape:
            raise UsageError(f"squares must be {len(self.weights)}, one per weight, got {len(given)}.")
        object.__setattr__(self, "squares", given)

    def __repr__(self) -> str:
        """With a hash: plans are told apart by their texts."""
        digest = hashlib.blake2b(torch.stack([self.weights, self.squares]).numpy().tobytes(), digest_size=6)
        return f"Fixed({len(self.weights)} coordinates, {digest.hexdigest()})"

    def init(self, layout: Layout) -> State:
        if layout.size != len(self.weights):
            raise UsageError(f"weights must be {layout.size}, one per coordinate, got {len(self.weights)}.")
        return {}

    def magnitudes(self, state: State, look: Look) -> Magnitudes:
        return Magnitudes(self.weights, self.squares)

    def update(self, state: State, used: Magnitudes, released: Private) -> State:
        return state


@dataclass(frozen=True)
class Unweighted:
    """The squares of another source, with noise that hurts equally everywhere: AdaCliP's rule in `Matched`.

    Pichapati, Suresh, Yu, Reddi and Kumar, "AdaCliP: adaptive clipping for private SGD" (2019).

    >>> look = Look(0, Stream(bytes(32)), lambda each: each)
    >>> Unweighted(Fixed(torch.tensor([2.0, 1.0]))).magnitudes({}, look).weights
    tensor([1., 1.], dtype=torch.float64)
    """

    source: Source

    def __post_init__(self) -> None:
        validate.instance(Source, source=self.source)

    def init(self, layout: Layout) -> State:
        return self.source.init(layout)

    def magnitudes(self, state: State, look: Look) -> Magnitudes:
        squares = self.source.magnitudes(state, look).squares
        return Magnitudes(torch.ones_like(squares), squares)

    def update(self, state: State, used: Magnitudes, released: Private) -> State:
        return self.source.update(state, used, released)


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of each coordinate, the mean square of the noise in one release, and how many releases say as much."""

    value: Tensor
    noise: Tensor
    releases: Tensor


@dataclass(frozen=True)
class RunningMeans:
    """Each release counts `memory` times as much as the one after it. The state is tensors, for a checkpoint.

    >>> means, layout = RunningMeans(memory=0.5), Layout(("w",), ((1,),))
    >>> state = means.init(layout)
    >>> for value in (2.0, 5.0):
    ...     state = means.added(state, torch.tensor([value]), noise_square=1.0)
    >>> means.read(state).value, round(float(means.read(state).releases), 3)
    (tensor([4.], dtype=torch.float64), 1.8)
    """

    memory: float

    def __post_init__(self) -> None:
        validate.between(0, 1, high_open=True, memory=self.memory)

    def init(self, layout: Layout) -> State:
        zeros, nothing = torch.zeros(layout.size, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        return {"sum": zeros, "noise": zeros, "counted": nothing, "counted_square": nothing}

    def added(self, state: State, value: Tensor, noise_square: float | Tensor) -> State:
        new = 1 - self.memory
        noise = torch.as_tensor(noise_square, dtype=torch.float64).to(state["noise"].device)
        return {
            "sum": self.memory * state["sum"] + new * value.to(state["sum"]),
            "noise": self.memory * state["noise"] + new * noise,
            "counted": self.memory * state["counted"] + new,
            "counted_square": self.memory**2 * state["counted_square"] + new**2,
        }

    def read(self, state: State) -> Means | None:
        """Nothing before the first release."""
        counted = state["counted"]
        if not counted:
            return None
        return Means(state["sum"] / counted, state["noise"] / counted, counted.square() / state["counted_square"])


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
