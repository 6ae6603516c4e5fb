"""Two encodings, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from sordino._input import validate
from sordino.encodings.freeze import Rest, both, rest_of
from sordino.kernel.encoding import Codec, Encoding, State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private


@dataclass(frozen=True)
class Combined:
    """Encodes with `first`, then with `second`, and decodes in the opposite order.

    Both are made for the coordinates of the model, so an encoding that changes them (`Project`) comes second. Each has
    randomness of its own, the coding stream's `named("first")` and `named("second")`: with one, two masks would be one.

    >>> from sordino.encodings.freeze import Freeze
    >>> from sordino.encodings.sparsify import RandomSparsify
    >>> both = Combined(Freeze(["bias"]), RandomSparsify(0.5, epochs=3, steps_per_epoch=10))
    >>> sorted(both.init(Layout(("weight", "bias"), ((2,), (2,)))))
    ['first/keep', 'second/size']
    """

    first: Encoding
    second: Encoding

    def __post_init__(self) -> None:
        validate.instance(Encoding, first=self.first, second=self.second)

    def init(self, layout: Layout) -> State:
        return _named(self.first.init(layout), self.second.init(layout))

    def codec(self, state: State, step: int, randomness: Stream) -> CombinedCodec:
        first = self.first.codec(_of("first", state), step, randomness.named("first"))
        return CombinedCodec(first, self.second.codec(_of("second", state), step, randomness.named("second")))

    def rest(self, state: State) -> Rest | None:
        return both(rest_of(self.first, _of("first", state)), rest_of(self.second, _of("second", state)))


@runtime_checkable
class DroppingCodec(Protocol):
    """A codec that drops coordinates of a release, for good, when it decodes it."""

    def without_masks(self, released: Private) -> Private:
        """What it would make of the release if it kept all coordinates, with the noise that fell on the others."""
        ...


@dataclass(frozen=True, repr=False)
class CombinedCodec:
    """The codecs of one step, one after the other.

    The first one learns from all that was released, whatever the second one masks: zeros in the place of noise would
    look like gradients that are exactly known.
    """

    first: Codec
    second: Codec

    def encode(self, each: PerExample) -> PerExample:
        return self.second.encode(self.first.encode(each))

    def decode(self, released: Private) -> tuple[Private, State]:
        by_second, second = self.second.decode(released)
        gradient, first = self.first.decode(by_second)
        if isinstance(self.second, DroppingCodec):
            _, first = self.first.decode(self.second.without_masks(released))
        return gradient, _named(first, second)

    def without_masks(self, released: Private) -> Private:
        for codec in (self.second, self.first):
            released = codec.without_masks(released) if isinstance(codec, DroppingCodec) else codec.decode(released)[0]
        return released


def _named(first: State, second: State) -> dict[str, Tensor]:
    return {f"first/{name}": x for name, x in first.items()} | {f"second/{name}": x for name, x in second.items()}


def _of(position: str, state: State) -> Mapping[str, Tensor]:
    start = f"{position}/"
    return {name.removeprefix(start): x for name, x in state.items() if name.startswith(start)}
