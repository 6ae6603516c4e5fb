"""The codec of every encoding that keeps some coordinates: a mask before the clip, and the same mask after the noise.

Guarantee (Theorem 3.1 of Zhu and Blaschko 2023): the masked sum with noise on all coordinates is a Gaussian release of
the same bound, and dropping coordinates from a release is post-processing. So a mask that no private row decided leaves
the event as it is, whatever its rate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from sordino.kernel.encoding import check_coordinates
from sordino.kernel.states import PerExample, Private


@dataclass(frozen=True)
class Decoded(Private):
    """What a codec made of a release, with the release itself and the mask: an encoding may learn from both."""

    released: Private = field(repr=False)
    keep: Tensor = field(repr=False)


@dataclass(frozen=True, repr=False)
class Masking:
    """Keeps the coordinates where `keep`, shape (d,), is True. The others add nothing, and get no noise."""

    keep: Tensor

    @cached_property
    def keeps_all(self) -> bool:
        return bool(self.keep.all())

    def encode(self, each: PerExample) -> PerExample:
        check_coordinates("a mask", self.keep.numel(), each.layout)
        return each if self.keeps_all else each.masked(self.keep)

    def decode(self, private: Private) -> Decoded:
        value = private.value if self.keeps_all else private.value.where(self.keep, 0.0)
        noise_square = self._kept(private.noise_square)
        return Decoded(value, private.layout, released=private, keep=self.keep, noise_square=noise_square)

    def _kept(self, noise_square: float | Tensor) -> float | Tensor:
        return noise_square if self.keeps_all else noise_square * self.keep.double()
