"""Composition of privacy losses on a grid, by a Fourier transform that is accurate near the requested epsilon.

A plain transform has a rounding error of about 1e-16 times the number of steps everywhere, far above a small delta. So
probabilities are multiplied by exp(tilt * loss) before, and divided by it afterwards. This moves most of the
probability to the requested epsilon, so that the error is relative to delta itself (exponential tilting, as in
saddle-point methods).

Index letter: `k` is a point of the grid, at the loss `(lowest + k) * interval`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft, signal

from sordino.accounting.dominating_pairs import Losses, Reals

ROUNDING = 2.0**-52


@dataclass(frozen=True)
class LossGrid:
    """Probabilities `mass[k]` of the losses of a grid, and the probability of an infinite loss."""

    interval: float
    lowest: int
    mass: Reals
    infinite: float

    @classmethod
    def of(cls, losses: Losses, interval: float) -> LossGrid:
        """Splits each loss between the two nearest grid points, and keeps its probability under both distributions.

        Among all pairs with losses on the grid that agree with the given pair at the points of the grid, this is the
        least private one. Hence it is an upper bound between the points (connect the dots: Doroshenko et al. 2022).
        """
        below = np.floor(losses.loss / interval)
        lowest = int(below.min())
        k = (below - lowest).astype(np.int64)
        moved_up = losses.mass * np.expm1(below * interval - losses.loss) / math.expm1(-interval)
        size = int(k.max()) + 2
        mass = np.bincount(k, losses.mass - moved_up, size) + np.bincount(k + 1, moved_up, size)
        mass = np.maximum(mass, 0.0)
        # A quadrature with a total probability below 1 is scaled up to 1.
        return cls(interval, lowest, mass / min(1.0, float(mass.sum()) + losses.infinite), losses.infinite)

    @property
    def losses(self) -> Reals:
        return (self.lowest + np.arange(len(self.mass), dtype=np.float64)) * self.interval

    def log_moment(self, tilt: float) -> float:
        """log E[exp(tilt * loss)] over the finite losses."""
        exponent = self._log_tilted(tilt)
        top = float(exponent.max())
        return top + math.log(float(np.exp(exponent - top).sum()))

    def tilted(self, tilt: float) -> Reals:
        """The probabilities times exp(tilt * loss), scaled to a sum of 1."""
        return np.asarray(np.exp(self._log_tilted(tilt) - self.log_moment(tilt)))

    def _log_tilted(self, tilt: float) -> Reals:
        # A probability may underflow where exp(tilt * loss) overflows, so their logarithms are added.
        with np.errstate(divide="ignore"):
            return np.asarray(tilt * self.losses + np.log(self.mass))


@dataclass(frozen=True)
class DeltaBounds:
    """Bounds `delta[k]` on delta at the epsilon `start + k * interval`, all numerical errors included."""

    interval: float
    start: float
    delta: Reals

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon of the range at which `delta` holds. Infinite if it holds nowhere in the range."""
        if not self.delta[-1] <= delta:
            return math.inf
        k = int(np.argmax(self.delta <= delta))
        upper = self.start + k * self.interval
        if k == 0:
            return max(0.0, upper)
        # Between two points of the grid delta is linear in exp(epsilon).
        fraction = min((delta - self.delta[k]) / (self.delta[k - 1] - self.delta[k]), 1 - ROUNDING)
        return max(0.0, upper + math.log1p(fraction * math.expm1(-self.interval)))

    def delta_at(self, epsilon: float) -> float:
        """The bound at one epsilon: the last value for epsilons above the range, and 1 for those below it."""
        k = math.floor((epsilon - self.start) / self.interval)
        if k < 0:
            return 1.0
        if k + 1 >= len(self.delta):
            return float(self.delta[-1])
        fraction = math.expm1(epsilon - (self.start + (k + 1) * self.interval)) / math.expm1(-self.interval)
        return float(self.delta[k + 1] + min(1.0, max(0.0, fraction)) * (self.delta[k] - self.delta[k + 1]))


def compose(grids: Sequence[LossGrid], counts: Sequence[int], *, tilt: float, low: float, high: float) -> DeltaBounds:
    """Bounds on delta for all epsilons from `low` to `high`, if the mechanism of grid `n` runs `counts[n]` times."""
    interval = grids[0].interval
    lowest = math.floor(low / interval)
    size = int(fft.next_fast_len(math.ceil(high / interval) - lowest + 2, real=True))
    top = (lowest + size) * interval
    # Losses outside of the window wrap around. Those from below appear at the top, which can only increase delta. Those
    # from above might be lost, so their probability (by Chernoff's bound) counts as that of an infinite loss.
    above = min(_log_moment(grids, counts, factor * tilt) - factor * tilt * top for factor in (1, 2, 4))
    infinite = -math.expm1(
        math.fsum(count * math.log1p(-grid.infinite) for grid, count in zip(grids, counts, strict=True))
    )

    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for grid, count in zip(grids, counts, strict=True):
        spectrum *= fft.rfft(_around_a_circle(grid.tilted(tilt), grid.lowest, size)) ** count
    tilted = np.roll(fft.irfft(spectrum, size), -(lowest % size))
    # Each factor of the spectrum has about log2(size) rounding errors, and no entry is above the mean of the spectrum.
    floor = 4 * ROUNDING * (1 + sum(counts)) * math.log2(size) * float(np.abs(spectrum).mean())
    tilted = np.maximum(tilted, 0.0) + floor

    middle = int(tilted.argmax())
    first = max(0, middle - int(500 / max(tilt * interval, 1e-9)))
    mass = tilted[first:] * np.exp(-tilt * interval * (np.arange(first, size) - middle))
    # delta[k - 1] - delta[k] = (1 - exp(-interval)) * later[k]; later[k] = mass[k] + exp(-interval) * later[k + 1].
    # These are sums of positive terms. The terms in the definition of delta would cancel.
    later = signal.lfilter([1.0], [1.0, -math.exp(-interval)], mass[::-1])[::-1]
    tail_sums = np.append(np.cumsum(later[:0:-1])[::-1], 0.0)
    log_scale = _log_moment(grids, counts, tilt) - tilt * (lowest + middle) * interval
    scale = math.exp(log_scale) if log_scale < 600 else math.inf
    rounded_up = 1 + 1e-9 + 1e-13 * sum(counts)
    delta = -math.expm1(-interval) * scale * rounded_up * (tail_sums + 1e-300) + infinite + math.exp(min(0.0, above))
    return DeltaBounds(interval, (lowest + first) * interval, np.minimum(delta, 1.0))


def _log_moment(grids: Sequence[LossGrid], counts: Sequence[int], tilt: float) -> float:
    return math.fsum(count * grid.log_moment(tilt) for grid, count in zip(grids, counts, strict=True))


def _around_a_circle(values: Reals, lowest: int, size: int) -> Reals:
    """The values at the indices `lowest`, `lowest + 1`, ... modulo `size`, for a circular convolution."""
    return np.asarray(np.bincount((lowest + np.arange(len(values))) % size, values, size), dtype=np.float64)
