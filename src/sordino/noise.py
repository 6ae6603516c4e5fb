"""Noise: BoundedSum -> Private. It reads the bound from the sum it is given and has no other argument for it."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import Protocol, runtime_checkable

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from scipy.stats import norm as normal

from sordino import validate
from sordino.accounting.adjacency import Adjacency
from sordino.errors import UsageError
from sordino.randomness import LARGEST_NORMAL, Stream
from sordino.states import NUMBERS_AT_A_TIME, BoundedSum, Private

LATTICE_BITS = 16  # the lattice's spacing is 2**-LATTICE_BITS of the largest power of two within a standard deviation
_SHARE_OF_DELTA = 1e-3
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e6


@dataclass(frozen=True)
class NoiseAt:
    """Where a step's noise comes from: the run's noise stream, at one step."""

    stream: Stream
    step: int


@runtime_checkable
class Noise(Protocol):
    """Makes a sum private, and says what that is worth."""

    @property
    def event(self) -> DpEvent:
        """The event of one release, its multiplier relative to the bound of the sum."""
        ...

    def std(self, bound: float) -> float:
        """The standard deviation of the noise on a sum of this bound."""
        ...

    def add(self, total: BoundedSum, at: NoiseAt) -> Private: ...

    def with_multiplier(self, noise_multiplier: float) -> Noise:
        """The same noise at another scale, for calibration."""
        ...

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        """The chance that `steps` releases show where the generator's noise ends, at most."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise of standard deviation `noise_multiplier` times the bound of the sum.

    Guarantee: the standard deviation depends on the bound and nothing else, and the result lies on a lattice of 2**-17
    to 2**-16 standard deviations, so its last bits tell nothing about the sum (docs/attack-model.md says what remains).

    >>> Gaussian(1.1).event
    GaussianDpEvent(noise_multiplier=1.1)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        validate.positive(noise_multiplier=self.noise_multiplier)
        if not SMALLEST_MULTIPLIER <= self.noise_multiplier <= LARGEST_MULTIPLIER:
            raise UsageError(
                f"noise_multiplier must be in [{SMALLEST_MULTIPLIER:g}, {LARGEST_MULTIPLIER:g}], "
                f"got {self.noise_multiplier!r}."
            )

    @property
    def event(self) -> DpEvent:
        return GaussianDpEvent(self.noise_multiplier)

    def std(self, bound: float) -> float:
        return self.noise_multiplier * bound

    def add(self, total: BoundedSum, at: NoiseAt) -> Private:
        normals = torch.from_numpy(at.stream.normals(total.value.numel(), step=at.step)).to(total.value.device)
        return Private(_released(total.value, normals, self.std(total.bound)), total.layout)

    def with_multiplier(self, noise_multiplier: float) -> Gaussian:
        return Gaussian(noise_multiplier)

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        # In the worst direction the record moves one coordinate by sensitivity / multiplier standard deviations.
        return float(steps * normal.sf(LARGEST_NORMAL - sensitivity / self.noise_multiplier))


def check_tail(noise: Noise, adjacency: Adjacency, *, steps: int, delta: float) -> None:
    """Refuses so little noise that the end of the generator's range, which no normal has, might be seen."""
    if delta < smallest_delta(noise, adjacency, steps=steps):
        risk = _SHARE_OF_DELTA * smallest_delta(noise, adjacency, steps=steps)
        raise UsageError(
            f"noise_multiplier is too small: the generator's noise would be seen to end with chance {risk:.1e}, "
            f"allowed is delta / 1000 = {_SHARE_OF_DELTA * delta:.1e}."
        )


def smallest_delta(noise: Noise, adjacency: Adjacency, *, steps: int) -> float:
    """A thousand times the chance that `steps` releases show where the generator's noise ends."""
    return noise.tail_risk(2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0, steps) / _SHARE_OF_DELTA


def _released(total: torch.Tensor, normals: torch.Tensor, noise_std: float) -> torch.Tensor:
    """total + noise_std * normals in float64, rounded to multiples of a power of two.

    Counted in multiples from the start: powers of two scale without rounding, and one pass over memory is saved. Each
    piece stays in cache from the first pass to the last.
    """
    spacing = 2.0 ** (floor(log2(noise_std)) - LATTICE_BITS)
    released = torch.empty_like(total, dtype=torch.float64)
    pieces = (torch.split(x, NUMBERS_AT_A_TIME) for x in (released, total, normals))
    for out, part, noise in zip(*pieces, strict=True):
        out.copy_(noise).mul_(noise_std / spacing).add_(part, alpha=1 / spacing).round_().mul_(spacing)
    return released
