"""Random and ranked sparsification of gradients, and schedules of its rate.

How many coordinates are zeroed under each mask of a run: functions of the mask's number and of nothing else.

Sparsification: some coordinates add nothing, and get no noise, for some steps. Random ones, or the lowest in rank.

Zhu and Blaschko, "Improving differentially private SGD via randomly sparsified gradients" (TMLR 2023). Algorithm 1 is
random. Algorithm 4, by rank, is there to be compared: noise decides most ranks, so it does about as well. Its printed
line 20 moves by the raw gradient, which would not be private. Here, as everywhere, the optimizer gets the noisy one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings.codecs import MaskCodec
from sordino.errors import UsageError
from sordino.kernel.encoding import State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, Private


@runtime_checkable
class RateSchedule(Protocol):
    """The share of coordinates that mask number `mask` of `masks` zeroes, at most `final_rate`."""

    def rate(self, final_rate: float, mask: int, masks: int) -> float: ...


@dataclass(frozen=True)
class Cooling:
    """Rises linearly from 0 under the first mask to `final_rate` under the last: early steps gain most from all.

    >>> [Cooling().rate(0.9, mask, 4) for mask in range(5)]
    [0.0, 0.3, 0.6, 0.9, 0.9]
    """

    def rate(self, final_rate: float, mask: int, masks: int) -> float:
        return min(final_rate * mask / (masks - 1), final_rate) if masks > 1 else 0.0


@dataclass(frozen=True)
class ConstantRate:
    """The final rate from the start, for comparison.

    >>> ConstantRate().rate(0.9, 0, 4)
    0.9
    """

    def rate(self, final_rate: float, mask: int, masks: int) -> float:
        return final_rate


@dataclass(frozen=True)
class Sparsification:
    """Which mask holds in a step, and how many coordinates it zeroes.

    There are `refresh` masks in an epoch of `steps_per_epoch` steps: 1 for one per epoch, `steps_per_epoch` for a new
    one in every step. Steps after the last epoch go on at the last rate.

    >>> sparsification = Sparsification(0.9, epochs=3, steps_per_epoch=4)
    >>> [sparsification.mask_number(step) for step in range(12)]
    [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    >>> [sparsification.zeroed(step, 1000) for step in (0, 4, 8)]
    [0, 450, 900]
    """

    final_rate: float
    epochs: int
    steps_per_epoch: int
    refresh: int = 1
    schedule: RateSchedule = field(default_factory=Cooling)

    def __post_init__(self) -> None:
        validate.between(0, 1, high_open=True, final_rate=self.final_rate)
        validate.count(epochs=self.epochs, steps_per_epoch=self.steps_per_epoch)
        validate.count(at_most=self.steps_per_epoch, refresh=self.refresh)
        validate.instance(RateSchedule, schedule=self.schedule)
        masks = self.refresh * self.epochs
        if self.final_rate and not self.schedule.rate(self.final_rate, masks - 1, masks):
            raise UsageError(
                f"a rate that rises reaches final_rate {self.final_rate:g} under the last of two masks or more, got "
                f"{masks} mask: train for two epochs at least, or refresh masks more often."
            )

    def mask_number(self, step: int) -> int:
        """How many masks came before the one of this step."""
        return step * self.refresh // self.steps_per_epoch

    def rate(self, step: int) -> float:
        """The share of coordinates that is zeroed in this step."""
        return self.schedule.rate(self.final_rate, self.mask_number(step), self.refresh * self.epochs)

    def zeroed(self, step: int, size: int) -> int:
        """How many of `size` coordinates are zeroed in this step, exactly."""
        return int(self.rate(step) * size)


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
