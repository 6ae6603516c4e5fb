"""Ranked sparsification: the coordinates that moved least in the last epoch rest in the next.

Zhu and Blaschko (2023), Algorithm 4, which is there to be compared: noise decides most ranks, so it does about as well
as random sparsification. Its printed line 20 moves by the raw gradient, which would not be private. Here, as
everywhere, the optimizer gets the noisy one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from sordino.encodings.masking import MaskCodec
from sordino.encodings.rates import Sparsification
from sordino.kernel.encoding import State
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, Private


@dataclass(frozen=True)
class RankedSparsify(Sparsification):
    """Zeroes the int(rate * d) coordinates of which the released gradients add up to least since the mask before.

    All are kept under the first mask. Masked coordinates are part of the sum with the noise that fell on them, or what
    is masked once would never come back.

    Guarantee: ranks are computed from releases only, so a mask is post-processing and costs nothing (see `masking`).

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
