"""Random sparsification: a random part of the coordinates adds nothing, and gets no noise, for some steps.

Zhu and Blaschko, "Improving differentially private SGD via randomly sparsified gradients" (TMLR 2023), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sordino.encodings.masking import MaskCodec
from sordino.encodings.rates import Cooling, RateSchedule, Sparsification
from sordino.kernel.encoding import State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout


@dataclass(frozen=True)
class RandomSparsify(Sparsification):
    """Zeroes int(rate * d) random coordinates of every gradient before the clip, and of the noise.

    The rate rises to `final_rate` over `epochs` epochs (`Cooling`), or is `ConstantRate()` for comparison. There are
    `refresh` masks in an epoch of `steps_per_epoch` steps, so `refresh` = `steps_per_epoch` draws one in every step.

    Guarantee: a mask is a function of the coding stream and of its number, never of data. It is the same throughout a
    step, and after the run is resumed. It costs nothing (see `masking`): the plan's event is the one without it.

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
