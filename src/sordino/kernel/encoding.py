"""What is done to a gradient before the clip and undone after the noise.

Random sparsification, freezing, projection and anisotropic scaling are one concept: encode before the clip, decode
after the noise, with one codec per step, so that noise falls exactly on the coordinates that were kept. No signature
here has data in it: whatever an encoding learns, a codec learns from the release that it decodes, and hands on as the
state of the next step. So learning is post-processing and cannot cost privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from sordino.errors import UsageError
from sordino.kernel.randomness import Stream
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private

State = Mapping[str, Tensor]  # by names of the encoding's own choosing: it is saved with the checkpoint


@runtime_checkable
class Codec(Protocol):
    """One step's pair of maps. It holds what it needs of the encoding's state, and is not changed by use.

    Guarantee: `encode` maps each unit from that unit alone, and a mapped unit is not larger than what `decode` makes a
    gradient of: the clip bounds all that leaves. `decode` is a function of the released vector and of public values.
    """

    def encode(self, each: PerExample) -> PerExample: ...

    def decode(self, released: Private) -> tuple[Private, State]:
        """The gradient in the coordinates of the model, and the state that the next step's codec is made from."""
        ...


@runtime_checkable
class Encoding(Protocol):
    """Makes one codec per step from its state, the step and its own randomness. The run keeps the state."""

    def init(self, layout: Layout) -> State: ...

    def codec(self, state: State, step: int, randomness: Stream) -> Codec: ...


def decoded_without_noise(codec: Codec, total: BoundedSum) -> Tensor:
    """What a codec makes of a sum that has no noise: as private as the rows it was made from.

    For audits and verification, which compare it with a release. It is a tensor and no `Private`, so that no optimizer
    is given it by mistake, and the state that was learnt from it is dropped.

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
            f"{what} of {size} coordinates meets gradients of {layout.size}: "
            "an encoding that changes the coordinates comes last, and all are made for the model that is trained."
        )


class GradientRows(Protocol):
    """Gradients of public rows, some at a time. Every `PerExample` is such."""

    @property
    def layout(self) -> Layout: ...

    def rows(self, chunk: int) -> Iterator[Tensor]: ...


class Anchors(Protocol):
    """Gradients of public or synthetic rows at the parameters of today: a function of nothing private."""

    def __call__(self, step: int, randomness: Stream) -> GradientRows: ...


@dataclass(frozen=True)
class Unchanged:
    """The encoding that does nothing, and its own codec.

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
