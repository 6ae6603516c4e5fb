"""The codec of every encoding that keeps some coordinates: a mask before the clip, and the same mask after the noise.

Guarantee (Theorem 3.1 of Zhu and Blaschko 2023): the masked sum with noise on all coordinates is a Gaussian release of
the same bound, and dropping coordinates from a release is post-processing. So a mask that no private row decided leaves
the event as it is, whatever its rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from torch import Tensor

from sordino.kernel.encoding import State, check_coordinates
from sordino.kernel.states import PerExample, Private

Learn: TypeAlias = Callable[[Private], State]  # the next state, from a release that a codec decodes


@dataclass(frozen=True, repr=False)
class MaskCodec:
    """Keeps the coordinates where `keep`, shape (d,), is True. The others add nothing, and get no noise.

    `learn` makes the next state from the release before the mask: with the noise that fell on the other coordinates,
    because zeros in its place would look like gradients that are exactly known.

    >>> from sordino.kernel.states import Layout
    >>> import torch
    >>> codec = MaskCodec(torch.tensor([True, False]), learn=lambda released: {"sum": released.value})
    >>> gradient, state = codec.decode(Private(torch.tensor([3.0, 4.0]), Layout(("w",), ((2,),))))
    >>> gradient.value, state["sum"]
    (tensor([3., 0.]), tensor([3., 4.]))
    """

    keep: Tensor
    learn: Learn

    @cached_property
    def keeps_all(self) -> bool:
        return bool(self.keep.all())

    def encode(self, each: PerExample) -> PerExample:
        check_coordinates("a mask", self.keep.numel(), each.layout)
        return each if self.keeps_all else each.masked(self.keep)

    def decode(self, released: Private) -> tuple[Private, State]:
        state = self.learn(released)
        if self.keeps_all:
            return released, state
        noise_square = released.noise_square * self.keep.double()
        return released.lift(lambda value: value.where(self.keep, 0.0), noise_square=noise_square), state

    def without_masks(self, released: Private) -> Private:
        return released
