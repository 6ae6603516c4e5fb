"""Sparsification: some coordinates add nothing, and get no noise, for some steps. Random ones, or the lowest in rank.

Zhu and Blaschko, "Improving differentially private SGD via randomly sparsified gradients" (TMLR 2023). Algorithm 1 is
random. Algorithm 4, by rank, is there to be compared: noise decides most ranks, so it does about as well. Its printed
line 20 moves by the raw gradient, which would not be private. Here, as everywhere, the optimizer gets the noisy one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from sordino.encodings.codecs import MaskCodec
from sordino.encodings.rates import Cooling, RateSchedule, Sparsification
from sordino.kernel.encoding import State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, Private


@dataclass(frozen=True)
class RandomSparsify(Sparsification):
    """Zeroes int(rate * d) random coordinates of every gradient before the clip, and of the noise.

    The rate rises to `final_rate` over `epochs` epochs (`Cooling`), or is `ConstantRate()` for comparison. There are
    `refresh` masks in an epoch of `steps_per_epoch` steps, so `refresh` = `steps_per_epoch` draws one in every step.

    Guarantee: a mask is a function of the coding stream and of its number, never of data. It is the same throughout a
    step, and after the run is resumed. It costs nothing (see `codecs`): the plan's event is the one without it.

    The optimizer lies behind the release: with momentum or Adam, a masked coordinate still moves by its velocity, as in
    the paper.

    >>> sparsify = RandomSparsify(final_rate=0.9, epochs=3, steps_per_epoch=4)
    >>> [sparsify.rate(step) for step in (0, 4, 8)]
    [0.0, 0.45, 0.9]
    """

    @classmethod
    def throughout(
        cls,
        steps: int,
        *,
        final_rate: float,
        steps_per_epoch: int,
        refresh: int = 1,
        schedule: RateSchedule | None = None,
    ) -> RandomSparsify:
        """For a training of so many steps: its last whole epoch has the final rate, and so has what follows.

        >>> RandomSparsify.throughout(1406, final_rate=0.9, steps_per_epoch=29).epochs
        48
        """
        epochs = max(1, steps // steps_per_epoch)
        return cls(final_rate, epochs, steps_per_epoch, refresh, schedule or Cooling())

    def kept(self, step: int, layout: Layout, randomness: Stream) -> Tensor:
        """The coordinates that are kept, in rising order. Whoever has the coding stream knows them without being told.

        >>> from sordino.kernel.randomness import Key
        >>> sparsify = RandomSparsify(0.5, epochs=2, steps_per_epoch=1)
        >>> len(sparsify.kept(1, Layout(("w",), ((10,),)), Key.from_seed(0).stream("coding")))
        5
        """
        return self._mask(step, layout.size, randomness).nonzero()[:, 0]

    def mask(self, step: int, layout: Layout, randomness: Stream) -> Tensor:
        """True where a coordinate is kept, shape (d,)."""
        return self._mask(step, layout.size, randomness).clone()

    def init(self, layout: Layout) -> State:
        return {"size": torch.tensor(layout.size)}

    def codec(self, state: State, step: int, randomness: Stream) -> MaskCodec:
        return MaskCodec(self._mask(step, int(state["size"]), randomness), learn=lambda released: state)

    def _mask(self, step: int, size: int, randomness: Stream) -> Tensor:
        return random_mask(randomness, self.mask_number(step), size, self.zeroed(step, size))


@lru_cache(maxsize=4)
def random_mask(randomness: Stream, number: int, size: int, zeroed: int) -> Tensor:
    """Mask `number` of a stream, which zeroes so many of `size` coordinates.

    It is the same for all steps of an epoch, so it is kept: drawing it again would take as long as a small step.
    """
    keep = torch.ones(size, dtype=torch.bool)
    if zeroed:
        keep[torch.from_numpy(randomness.subset(size, zeroed, step=number))] = False
    return keep


@dataclass(frozen=True)
class RankedSparsify(Sparsification):
    """Zeroes the int(rate * d) coordinates of which the released gradients add up to least since the mask before.

    All are kept under the first mask. Masked coordinates are part of the sum with the noise that fell on them, or what
    is masked once would never come back.

    Guarantee: ranks are computed from releases only, so a mask is post-processing and costs nothing (see `codecs`).

    >>> ranked = RankedSparsify(final_rate=0.5, epochs=2, steps_per_epoch=1)
    >>> state, layout = ranked.init(Layout(("w",), ((4,),))), Layout(("w",), ((4,),))
    >>> codec = ranked.codec(state, 0, Stream(bytes(32)))
    >>> _, state = codec.decode(Private(torch.tensor([3.0, -1.0, 0.5, -4.0]), layout))
    >>> ranked.codec(state, 1, Stream(bytes(32))).keep
    tensor([ True, False, False,  True])
    """

    def init(self, layout: Layout) -> State:
        keep = torch.ones(layout.size, dtype=torch.bool)
        return {"steps": torch.tensor(0), "keep": keep, "sum": torch.zeros(layout.size, dtype=torch.float64)}

    def codec(self, state: State, step: int, randomness: Stream) -> MaskCodec:
        return MaskCodec(state["keep"], learn=partial(self._ranked, state))

    def _ranked(self, state: State, released: Private) -> State:
        total, done = state["sum"] + released.value, int(state["steps"]) + 1
        if self.mask_number(done) == self.mask_number(done - 1):
            return {"steps": torch.tensor(done), "keep": state["keep"], "sum": total}
        keep = torch.ones_like(state["keep"])
        keep[total.abs().argsort(stable=True)[: self.zeroed(done, keep.numel())]] = False
        return {"steps": torch.tensor(done), "keep": keep, "sum": torch.zeros_like(total)}
