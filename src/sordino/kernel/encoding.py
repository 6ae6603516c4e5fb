"""Encodings: transforms of a gradient that are applied before the clip and inverted after the noise.

Random sparsification, freezing, projection and anisotropic scaling are one concept: encode before the clip, decode
after the noise, with one codec per step, so that noise falls exactly on the coordinates that were kept. No function
here takes data as an argument: a codec can learn only from the release that it decodes, and returns what it learned as
the state of the next step. So learning is post-processing and cannot cost privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from sordino.errors import UsageError
from sordino.kernel.randomness import Stream
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private

State = Mapping[str, Tensor]  # the encoding chooses the names; checkpoints save it


@runtime_checkable
class Codec(Protocol):
    """The two maps of one step. It holds what it needs of the encoding's state, and use does not change it.

    Guarantee: `encode` maps each unit by itself, and makes no unit larger than `decode` can map back: the clip, which
    acts on encoded units, bounds all that is released. `decode` is a function of the released vector and of public
    values.
    """

    def encode(self, each: PerExample) -> PerExample: ...

    def decode(self, released: Private) -> tuple[Private, State]:
        """The gradient in the coordinates of the model, and the state for the codec of the next step."""
        ...


@runtime_checkable
class Encoding(Protocol):
    """Makes one codec per step from the state, the step and randomness of its own. The run keeps the state."""

    def init(self, layout: Layout) -> State: ...

    def codec(self, state: State, step: int, randomness: Stream) -> Codec: ...


def decoded_without_noise(codec: Codec, total: BoundedSum) -> Tensor:
    """Decodes a sum without noise. The result is as sensitive as the rows it was computed from.

    For audits and verification, which compare it with a release. It is a tensor and not a `Private`, so that no
    optimizer is given it by mistake, and the state that was learned from it is dropped.

    >>> layout = Layout(("w",), ((2,),))
    >>> decoded_without_noise(Unchanged(), BoundedSum.of_nobody(1.0, layout))
    tensor([0., 0.], dtype=torch.float64)
    """
    gradient, _ = codec.decode(Private(total.value.double(), total.layout))
    return gradient.value


def check_coordinates(what: str, size: int, layout: Layout) -> None:
    """Refuses gradients that are not in the coordinates that a codec was made for.

    >>> check_coordinates("a mask", 2, Layout(("w",), ((2,),)))
    """
    if size != layout.size:
        raise UsageError(
            f"{what} has {size} coordinates, and the gradients have {layout.size}: make all encodings for the model "
            "that is trained, and put an encoding that changes the coordinates last."
        )


class GradientRows(Protocol):
    """Gradients of public rows, a chunk at a time. Every `PerExample` has this interface."""

    @property
    def layout(self) -> Layout: ...

    def rows(self, chunk: int) -> Iterator[Tensor]: ...


class Anchors(Protocol):
    """Computes gradients of public or synthetic rows at the current parameters. Uses nothing private."""

    def __call__(self, step: int, randomness: Stream) -> GradientRows: ...


@dataclass(frozen=True)
class Unchanged:
    """The identity encoding. It is its own codec.

    >>> Unchanged().init(Layout(("w",), ((2,),)))
    {}
    """

    def init(self, layout: Layout) -> State:
        return {}

    def codec(self, state: State, step: int, randomness: Stream) -> Codec:
        return self

    def encode(self, each: PerExample) -> PerExample:
        return each

    def decode(self, released: Private) -> tuple[Private, State]:
        return released, {}
