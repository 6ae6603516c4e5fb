"""`Combined`: two encodings applied one after the other."""

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

    Both are initialized with the coordinates of the model, so an encoding that changes them (`Project`) must be the
    second. Each has a stream of its own, `named("first")` and `named("second")` of the coding stream: with a common
    stream, two random masks would be equal.

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
    """A codec that drops coordinates of a release when it decodes it."""

    def without_masks(self, released: Private) -> Private:
        """Decodes the release without dropping coordinates: masked ones keep their noise."""
        ...


@dataclass(frozen=True, repr=False)
class CombinedCodec:
    """The codecs of one step, applied one after the other.

    The first codec learns from the whole release, including coordinates that the second masks: zeros in place of noise
    would look like gradients that are known exactly.
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
