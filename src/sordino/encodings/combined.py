"""Two encodings, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from sordino._input import validate
from sordino.encodings.masking import Decoded
from sordino.encodings.resting import Rest, both, rest_of
from sordino.errors import UsageError
from sordino.kernel.encoding import Codec, Encoding, State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private


@dataclass(frozen=True)
class Combined:
    """Encodes with `first`, then with `second`, and decodes in the opposite order.

    Both are made for the coordinates of the model, so an encoding that changes them (`Project`) comes second. Each has
    randomness of its own, the coding stream's `named("first")` and `named("second")`: with one, two masks would be one.

    >>> from sordino.encodings.freeze import Freeze
    >>> from sordino.encodings.random_sparsify import RandomSparsify
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

    def update(self, state: State, private: Private) -> State:
        if not isinstance(private, DecodedTwice):
            raise UsageError("two encodings learn from what their own codec decoded.")
        first = self.first.update(_of("first", state), private.by_first)
        return _named(first, self.second.update(_of("second", state), private.by_second))

    def rest(self, state: State) -> Rest | None:
        return both(rest_of(self.first, _of("first", state)), rest_of(self.second, _of("second", state)))


@dataclass(frozen=True)
class DecodedTwice(Private):
    """What two codecs made of a release, each for its own encoding to learn from.

    The first one learns from all that was released, whatever the second one masks: zeros in the place of noise would
    look like gradients that are exactly known.
    """

    by_first: Private = field(repr=False)
    by_second: Private = field(repr=False)


@dataclass(frozen=True, repr=False)
class CombinedCodec:
    """The codecs of one step, one after the other."""

    first: Codec
    second: Codec

    def encode(self, each: PerExample) -> PerExample:
        return self.second.encode(self.first.encode(each))

    def decode(self, private: Private) -> DecodedTwice:
        by_second = self.second.decode(private)
        by_first = self.first.decode(by_second)
        seen = _unmasked(by_second)
        learnt_from = by_first if seen is by_second else self.first.decode(seen)
        return DecodedTwice(by_first.value, by_first.layout, learnt_from, by_second, noise_square=by_first.noise_square)


def _unmasked(private: Private) -> Private:
    """A release before masks dropped coordinates of it, with the noise that fell on them."""
    if isinstance(private, Decoded):
        return _unmasked(private.released)
    return _unmasked(private.by_first) if isinstance(private, DecodedTwice) else private


def _named(first: State, second: State) -> dict[str, Tensor]:
    return {f"first/{name}": x for name, x in first.items()} | {f"second/{name}": x for name, x in second.items()}


def _of(position: str, state: State) -> Mapping[str, Tensor]:
    start = f"{position}/"
    return {name.removeprefix(start): x for name, x in state.items() if name.startswith(start)}
