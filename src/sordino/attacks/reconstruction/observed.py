"""What somebody on the line sees of a gradient: all of it, or with noise, or the coordinates that a mask lets through.

No epsilon goes with it. The gradient is that of one row without a clip, as in the papers on these attacks, and noise of
a standard deviation on what has no bound promises nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings import RandomSparsify
from sordino.encodings.rates import ConstantRate
from sordino.kernel.randomness import Key
from sordino.kernel.states import Layout


@dataclass(frozen=True)
class Observed:
    """A gradient as it was sent: `value` where `keep`, both of shape (d,). Elsewhere nothing was sent, and it is 0."""

    value: Tensor = field(repr=False)
    keep: Tensor = field(repr=False)
    layout: Layout = field(repr=False)
    noise_std: float
    rate: float

    def tensors(self) -> dict[str, Tensor]:
        """By parameter, in its shape."""
        return self.layout.split(self.value)

    def kept(self) -> dict[str, Tensor]:
        """Which entries of each parameter were sent."""
        return self.layout.split(self.keep)


def observe(
    gradient: Tensor, layout: Layout, *, noise_std: float = 0.0, rate: float = 0.0, seed: int = 0, row: int = 0
) -> Observed:
    """The flat gradient with normal noise on each coordinate, and then without those that a mask of `rate` drops.

    The mask is that of `RandomSparsify`, at a rate that does not change. One seed gives each `row` one noise, and
    masks that grow with the rate: what is seen at a higher one is a part of what is seen at a lower one.

    >>> seen = observe(torch.ones(10), Layout(("w",), ((10,),)), rate=0.8)
    >>> int(seen.keep.sum()), float(seen.value.sum())
    (2, 2.0)
    """
    validate.between(0, 1e30, noise_std=noise_std)
    sparsify = RandomSparsify(rate, epochs=1, steps_per_epoch=1, schedule=ConstantRate())
    key = Key.from_seed(seed)
    keep = sparsify.mask(row, layout, key.stream("coding"))
    noise = torch.from_numpy(key.stream("noise").normals(layout.size, step=row)).to(gradient.dtype)
    return Observed((gradient + noise_std * noise).where(keep, 0.0), keep, layout, noise_std, rate)
