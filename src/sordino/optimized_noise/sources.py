"""Where weights come from: how large gradients are in each coordinate, without a look at a private row.

Slides of optimised noise take them from all training examples, in every step and for nothing. What they tell about an
example is then in no epsilon. A source here sees past releases, rows declared public or tensors declared public, and no
signature has data in it. So noise and scales that follow it are post-processing of what has been paid for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.encoding import State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private
from sordino.optimized_noise.weights import usable_weights


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
