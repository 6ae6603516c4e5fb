"""Noise: BoundedSum -> Private. It reads the bound from the sum it is given and has no other argument for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, nextafter
from typing import ClassVar, Protocol, runtime_checkable

from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from torch import Tensor

from sordino.accounting.adjacency import Adjacency
from sordino.accounting.calibrate import check_multiplier as check_multiplier
from sordino.errors import UsageError
from sordino.kernel.lattice import ConstantScale, rounded_sum, spacing_of
from sordino.kernel.randomness import Stream
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private

ROUNDED_EXACTLY = (
    "noise is that of the theorem over the real numbers, and the release is rounded exactly; random bits are those of "
    "AES-256, and NumPy's logarithms are right to 2^-47"
)
_SHARE_OF_DELTA = 1e-3
_SMALLEST_DELTA = 1e-15  # what a delta of 0 counts as where a generator ends, which no finite one avoids


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

    def add_and_learn(self, total: BoundedSum, at: NoiseAt) -> tuple[Private, Mapping[str, Tensor]]:
        """What `add` releases, and what it knows after this step: a function of the release and of public values."""
        ...

    def expected_norm(self, bound: float, at: NoiseAt) -> float:
        """The L2 norm to expect of the noise on a sum of this bound."""
        ...


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise of standard deviation `noise_multiplier` times the bound of the sum.

    Guarantee: the release is the sum plus real-valued normal noise, rounded exactly to a lattice that depends on the
    bound and the multiplier only. So it is post-processing of the Gaussian mechanism (`sordino.kernel.lattice`).

    >>> Gaussian(1.1).event
    GaussianDpEvent(noise_multiplier=1.1)
    """

    noise_multiplier: float

    arithmetic: ClassVar[str] = ROUNDED_EXACTLY

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)

    @property
    def event(self) -> DpEvent:
        return GaussianDpEvent(self.noise_multiplier)

    def std(self, bound: float) -> float:
        return nextafter(self.noise_multiplier * bound, inf)  # the product may have been rounded down

    def add(self, total: BoundedSum, at: NoiseAt) -> Private:
        std = self.std(total.bound)
        released = rounded_sum(total.value, ConstantScale(std), spacing_of(std), stream=at.stream, step=at.step)
        return Private(released, total.layout, noise_square=std**2)

    def with_multiplier(self, noise_multiplier: float) -> Gaussian:
        return Gaussian(noise_multiplier)

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        return 0.0  # the noise has no end: bits are drawn for as long as the tail goes on


def arithmetic_of(noise: Noise) -> tuple[str, ...]:
    """What the guarantee takes for granted about how this noise is computed. Noise of somebody else's says nothing."""
    assumed = getattr(noise, "arithmetic", None)
    return (assumed,) if isinstance(assumed, str) else ()


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
