"""What is done to a gradient before the clip and undone after the noise.

Random sparsification, freezing, projection and anisotropic scaling are one concept: encode before the clip, decode
after the noise, with one codec per step, so that noise falls exactly on the coordinates that were kept. No signature
here has data in it: whatever an encoding learns, it learns from past `Private` values, so it cannot cost privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from sordino.errors import UsageError
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private

State = Mapping[str, Tensor]  # by names of the encoding's own choosing: it is saved with the checkpoint


@runtime_checkable
class Codec(Protocol):
    """One step's pair of maps. `encode` acts on each unit alone; `decode` sees only the released vector."""

    def encode(self, each: PerExample) -> PerExample: ...

    def decode(self, private: Private) -> Private: ...


@runtime_checkable
class Encoding(Protocol):
    """Makes one codec per step from its state, the step and its own randomness, and learns from what was released."""

    def init(self, layout: Layout) -> State: ...

    def codec(self, state: State, step: int, randomness: Stream) -> Codec: ...

    def update(self, state: State, private: Private) -> State: ...


def check_coordinates(what: str, size: int, layout: Layout) -> None:
    """Refuses gradients that are not in the coordinates that a codec was made for.

    >>> check_coordinates("a mask", 2, Layout(("w",), ((2,),)))
    """
    if size != layout.size:
        raise UsageError(
            f"{what} of {size} coordinates meets gradients of {layout.size}: "
            "an encoding that changes the coordinates comes last, and all are made for the model that is trained."
        )


class Rows(Protocol):
    """Gradients of public rows, some at a time. Every `PerExample` is such."""

    @property
    def layout(self) -> Layout: ...

    def rows(self, chunk: int) -> Iterator[Tensor]: ...


class Anchors(Protocol):
    """Gradients of public or synthetic rows at the parameters of today: a function of nothing private."""

    def __call__(self, step: int, randomness: Stream) -> Rows: ...


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

    def update(self, state: State, private: Private) -> State:
        return state

    def encode(self, each: PerExample) -> PerExample:
        return each

    def decode(self, private: Private) -> Private:
        return private
