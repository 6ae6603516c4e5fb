"""Exact rounding: a sum plus real-valued noise, rounded once to the nearest point of a lattice.

Theorem: let S be the sum as it is held in float64 and Z the real-valued noise. `rounded_sum` returns the lattice point
that is nearest to S + Z, exactly. So it is post-processing of the mechanism S + Z over the real numbers, and has that
mechanism's guarantee: nothing is lost to the precision of the noise, to its tail or to the last bits of S.

Method: float64 gives S + Z to within a known error. If this decides which point is nearest, it is taken. For the other
coordinates, about one in five million, interval arithmetic encloses the noise with as many more random bits as the
decision needs. The spacing is a power of two. A sum too large to be added to the noise in float64 is split into the
nearest multiple of the spacing and a rest, which is exact, and the noise is added to the rest.

The theorem also holds for any linear combination of normals at known addresses, with the sum of their errors
(correlated noise), and for each coordinate separately, whichever process draws its noise (noise by shard).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import floor, log2
from typing import Any, Protocol

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.kernel.randomness import NORMAL_ERROR, Stream, enclosures

LATTICE_BITS = 16  # the spacing is 2**-LATTICE_BITS of the largest power of two within a standard deviation

Numbers = float | NDArray[np.float64]

# In units of the spacing: a sum up to which float64 has room for noise and fraction; the rounding of products and sums
# in float64, for such sums and noise of less than 2^26; and a number that, added and subtracted, rounds to integers.
_LARGEST_SUM, _ROUNDING, _TO_INTEGERS = 2.0**25, 2.0**-24, 1.5 * 2.0**52


class NoiseScale(Protocol):
    """The standard deviation of each coordinate's noise. It may itself be random, a real number known by intervals."""

    def of(self, part: slice) -> Numbers:
        """The standard deviations of some coordinates, in float64."""
        ...

    def error(self, part: slice) -> Numbers:
        """Upper bound on the relative error of the float64 values."""
        ...

    def interval(self, index: int, further: int) -> Any:
        """An interval that contains the real standard deviation of a coordinate, from `further` more words."""
        ...


@dataclass(frozen=True)
class ConstantScale:
    """One standard deviation for all coordinates, exactly `std`.

    >>> ConstantScale(2.0).of(slice(0, 3))
    2.0
    """

    std: float

    def of(self, part: slice) -> float:
        return self.std

    def error(self, part: slice) -> float:
        return 0.0

    def interval(self, index: int, further: int) -> float:
        return self.std


def spacing_of(std: float) -> float:
    """The spacing of the lattice: 2**-`LATTICE_BITS` of the largest power of two within the standard deviation.

    >>> spacing_of(1.5) == 2.0**-16
    True
    """
    return 2.0 ** (floor(log2(std)) - LATTICE_BITS)


def spacings_of(stds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The spacing of each coordinate's lattice. It is public, like the standard deviation."""
    _, exponents = np.frexp(stds)  # std is in [2^(e-1), 2^e)
    return np.asarray(np.ldexp(1.0, exponents - 1 - LATTICE_BITS))


def rounded_sum(total: Tensor, scale: NoiseScale, spacing: Numbers, *, stream: Stream, step: int) -> Tensor:
    """The multiples of `spacing` (powers of two) that are nearest to `total` plus `scale` times the step's normals.

    The result is float64, which rounds multiples beyond 2^53 once more. That is a function of the multiple, and so
    post-processing too.
    """
    sums = total.detach().cpu().numpy()
    released = np.empty(len(sums))

    def real_noise(index: int, further: int) -> Any:
        return scale.interval(index, further) * stream.normal_interval(index, step=step, further=further)

    @np.errstate(invalid="ignore")  # a sum that is not finite stays not finite, without a warning
    def round_block(block: int, part: slice) -> None:
        unit, std = spacing if isinstance(spacing, float) else spacing[part], scale.of(part)
        near, far = sums[part], None
        noise = np.empty(part.stop - part.start)
        stream.fill_with_normals(noise, step=step, block=block)
        noise *= std
        decided = (0.5 - _ROUNDING) * unit - NORMAL_ERROR * std
        if np.any(error := scale.error(part)):
            decided -= np.abs(noise) * error
        if not (max(near.max(), -near.min()) <= _LARGEST_SUM * np.min(unit)):
            near = near.astype(np.float64)
            far = np.rint(near / unit) * unit
            near -= far
        noise += near
        nearest = np.add(noise, _TO_INTEGERS * unit, out=released[part])
        nearest -= _TO_INTEGERS * unit
        noise -= nearest
        if not (max(noise.max(), -noise.min()) <= np.min(decided)):
            for undecided in np.flatnonzero(np.abs(noise) > decided).tolist():
                index = part.start + undecided
                of_index = unit if isinstance(unit, float) else float(unit[undecided])
                fraction = float(near[undecided]) / of_index
                nearest[undecided] = of_index * _nearest(fraction, partial(real_noise, index), of_index)
        if far is not None:
            nearest += far

    stream.in_blocks(len(sums), round_block)
    return torch.from_numpy(released).to(total.device)


def _nearest(fraction: float, noise: Callable[[int], Any], unit: float) -> int:
    """The integer nearest to `fraction` plus noise / `unit`. `noise` encloses the noise from more and more bits."""
    for enclosed in enclosures(noise):
        low, high = (_floor(end) for end in (enclosed / unit + fraction + 0.5)._mpi_)
        if low == high:
            return low
    raise ArithmeticError("4160 random bits did not decide how to round, which has a probability below 2^-3000.")


def _floor(end: Any) -> int:
    libmp: Any = mpmath.libmp
    return int(libmp.to_int(end, libmp.round_floor))
