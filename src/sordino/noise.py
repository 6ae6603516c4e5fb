"""Noise: BoundedSum -> Private. It reads the bound from the sum it is given and has no other argument for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import floor, log2
from typing import Protocol, runtime_checkable

import torch
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from scipy.stats import norm as normal
from torch import Tensor

from sordino import validate
from sordino.accounting.adjacency import Adjacency
from sordino.errors import UsageError
from sordino.randomness import LARGEST_NORMAL, Stream
from sordino.states import NUMBERS_AT_A_TIME, BoundedSum, Layout, PerExample, Private

LATTICE_BITS = 16  # the lattice's spacing is 2**-LATTICE_BITS of the largest power of two within a standard deviation
_SHARE_OF_DELTA = 1e-3
_SMALLEST_DELTA = 1e-15  # what a delta of 0 counts as where a generator ends, which no finite one avoids
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e6


@dataclass(frozen=True)
class NoiseAt:
    """Where a step's noise comes from: the run's noise stream, at one step.

    Noise that learns finds in `state` what it has learnt, and in `encode` the step's codec, for rows that are public.
    """

    stream: Stream
    step: int
    state: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    encode: Callable[[PerExample], PerExample] = field(default=lambda each: each, repr=False)


@runtime_checkable
class Noise(Protocol):
    """Makes a sum private, and says what that is worth."""

    @property
    def event(self) -> DpEvent:
        """The event of one release, its multiplier relative to the bound of the sum."""
        ...

    def add(self, total: BoundedSum, at: NoiseAt) -> Private: ...

    def with_multiplier(self, noise_multiplier: float) -> Noise:
        """The same noise at another scale, for calibration."""
        ...

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        """The chance that `steps` releases show where the generator's noise ends, at most."""
        ...


@runtime_checkable
class NormalNoise(Noise, Protocol):
    """Noise that is normal, with the same standard deviation in every coordinate."""

    def std(self, bound: float) -> float:
        """The standard deviation of the noise on a sum of this bound."""
        ...


@runtime_checkable
class LearningNoise(Noise, Protocol):
    """Noise whose shape follows past releases. The run keeps its state, and saves it with the checkpoint."""

    def init(self, layout: Layout) -> Mapping[str, Tensor]:
        """What it knows before the first step, for vectors of this layout."""
        ...

    def update(self, state: Mapping[str, Tensor], released: Private) -> Mapping[str, Tensor]:
        """What it knows after a step, from what `add` returned."""
        ...

    def expected_norm(self, bound: float, at: NoiseAt) -> float:
        """The L2 norm to expect of the noise on a sum of this bound."""
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
        check_multiplier(self.noise_multiplier)

    @property
    def event(self) -> DpEvent:
        return GaussianDpEvent(self.noise_multiplier)

    def std(self, bound: float) -> float:
        return self.noise_multiplier * bound

    def add(self, total: BoundedSum, at: NoiseAt) -> Private:
        normals = torch.from_numpy(at.stream.normals(total.value.numel(), step=at.step)).to(total.value.device)
        noise_std = self.std(total.bound)
        released = on_lattice(total.value, normals, scale=noise_std, smallest_std=noise_std)
        return Private(released, total.layout, noise_square=noise_std**2)

    def with_multiplier(self, noise_multiplier: float) -> Gaussian:
        return Gaussian(noise_multiplier)

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        # In the worst direction the record moves one coordinate by sensitivity / multiplier standard deviations.
        return float(steps * normal.sf(LARGEST_NORMAL - sensitivity / self.noise_multiplier))


def check_tail(noise: Noise, adjacency: Adjacency, *, steps: int, delta: float) -> None:
    """Refuses so little noise that the end of the generator's range, which its law has not, might be seen."""
    delta = delta or _SMALLEST_DELTA
    if delta < smallest_delta(noise, adjacency, steps=steps):
        risk = _SHARE_OF_DELTA * smallest_delta(noise, adjacency, steps=steps)
        raise UsageError(
            f"noise_multiplier is too small: the generator's noise would be seen to end with chance {risk:.1e}, "
            f"allowed is delta / 1000 = {_SHARE_OF_DELTA * delta:.1e}."
        )


class HopelessNoise(UserWarning):
    """The noise of a run is larger than anything that it could tell."""


def warn_if_hopeless(expected_norm: float, *, bound: float, dimension: int, batch_size: float) -> None:
    """Says so if noise on the mean gradient is expected to be longer than any gradient may be after the clip."""
    on_the_mean = expected_norm / batch_size
    if on_the_mean > bound:
        warnings.warn(
            f"the noise on the mean gradient has an expected norm of {on_the_mean:.3g}, and gradients are clipped to "
            f"{bound:.3g}: {dimension} coordinates are too many for this noise. Train fewer parameters, project "
            "gradients, or use Gaussian noise.",
            HopelessNoise,
            stacklevel=3,
        )


def smallest_delta(noise: Noise, adjacency: Adjacency, *, steps: int) -> float:
    """A thousand times the chance that `steps` releases show where the generator's noise ends."""
    return noise.tail_risk(2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0, steps) / _SHARE_OF_DELTA


def on_lattice(total: Tensor, noise: Tensor, *, scale: float, smallest_std: float) -> Tensor:
    """total + scale * noise in float64, rounded to multiples of a power of two, `lattice_spacing(smallest_std)`.

    Counted in multiples from the start: powers of two scale without rounding, and one pass over memory is saved. Each
    piece stays in cache from the first pass to the last.
    """
    spacing = lattice_spacing(smallest_std)
    released = torch.empty_like(total, dtype=torch.float64)
    pieces = (torch.split(x, NUMBERS_AT_A_TIME) for x in (released, total, noise))
    for out, part, drawn in zip(*pieces, strict=True):
        out.copy_(drawn).mul_(scale / spacing).add_(part, alpha=1 / spacing).round_().mul_(spacing)
    return released


def lattice_spacing(smallest_std: float) -> float:
    """2**-`LATTICE_BITS` of the largest power of two within the smallest standard deviation of any coordinate.

    >>> lattice_spacing(1.5) == 2.0**-16
    True
    """
    return 2.0 ** (floor(log2(smallest_std)) - LATTICE_BITS)


def check_multiplier(noise_multiplier: float) -> None:
    """Refuses multipliers that protect nobody, or that no sum survives."""
    validate.positive(noise_multiplier=noise_multiplier)
    if not SMALLEST_MULTIPLIER <= noise_multiplier <= LARGEST_MULTIPLIER:
        raise UsageError(
            f"noise_multiplier must be in [{SMALLEST_MULTIPLIER:g}, {LARGEST_MULTIPLIER:g}], got {noise_multiplier!r}."
        )
