"""Noise: BoundedSum -> Private. Its scale is read from the bound of the sum; there is no other argument for it."""

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
_TAIL_FRACTION = 1e-3  # the tail risk of a generator may be at most this fraction of delta
_SMALLEST_DELTA = 1e-15  # in place of a delta of 0 for noise with a finite range, which always has a tail risk


@dataclass(frozen=True)
class NoiseAt:
    """Address of the noise of a step: the noise stream of the run, and the step.

    For a `LearningNoise`, `state` is what it has learned so far, and `encode` the step's encoding, for public rows.
    """

    stream: Stream
    step: int
    state: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    encode: Callable[[PerExample], PerExample] = field(default=lambda each: each, repr=False)


@runtime_checkable
class Noise(Protocol):
    """A noise mechanism: it makes a sum private, and has the privacy event of that."""

    @property
    def event(self) -> DpEvent:
        """The event of one release. Its multiplier is relative to the bound of the sum."""
        ...

    def add(self, total: BoundedSum, at: NoiseAt) -> Private: ...

    def with_multiplier(self, noise_multiplier: float) -> Noise:
        """This noise at another scale, for calibration."""
        ...

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        """Upper bound on the probability that `steps` releases reveal the finite range of the generator."""
        ...


@runtime_checkable
class NormalNoise(Noise, Protocol):
    """Normal noise with one standard deviation for all coordinates."""

    def std(self, bound: float) -> float:
        """The standard deviation of the noise on a sum of this bound."""
        ...


@runtime_checkable
class LearningNoise(Noise, Protocol):
    """Noise whose shape follows past releases. The run keeps its state, and saves it with the checkpoint."""

    def init(self, layout: Layout) -> Mapping[str, Tensor]:
        """The state before the first step, for vectors of this layout."""
        ...

    def add_and_learn(self, total: BoundedSum, at: NoiseAt) -> tuple[Private, Mapping[str, Tensor]]:
        """The release of `add`, and the next state, which is a function of the release and of public values."""
        ...

    def expected_norm(self, bound: float, at: NoiseAt) -> float:
        """The expected L2 norm of the noise on a sum of this bound."""
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
        return 0.0  # the range is not finite: rounding is exact for real-valued noise


def arithmetic_of(noise: Noise) -> tuple[str, ...]:
    """What the guarantee assumes about the arithmetic of this noise. Empty for a noise that does not say."""
    assumed = getattr(noise, "arithmetic", None)
    return (assumed,) if isinstance(assumed, str) else ()


def check_tail(noise: Noise, adjacency: Adjacency, *, steps: int, delta: float) -> None:
    """Refuses so little noise that the finite range of the generator, which its distribution has not, could be seen."""
    delta = delta or _SMALLEST_DELTA
    if delta < smallest_delta(noise, adjacency, steps=steps):
        risk = _TAIL_FRACTION * smallest_delta(noise, adjacency, steps=steps)
        raise UsageError(
            f"noise_multiplier is too small: the finite range of the random generator could be seen with probability "
            f"{risk:.1e}, allowed is delta / 1000 = {_TAIL_FRACTION * delta:.1e}. Use more noise."
        )


class HopelessNoise(UserWarning):
    """The noise of a run is larger than any signal that it could have."""


def warn_if_hopeless(expected_norm: float, *, bound: float, dimension: int, batch_size: float) -> None:
    """Warns if the noise on the mean gradient has an expected norm above that of any clipped gradient."""
    on_the_mean = expected_norm / batch_size
    if on_the_mean > bound:
        warnings.warn(
            f"the noise on the mean gradient has an expected norm of {on_the_mean:.3g}, and gradients are clipped to "
            f"norm {bound:.3g}: {dimension} coordinates are too many for this noise. Train fewer parameters, project "
            "gradients, or use Gaussian noise.",
            HopelessNoise,
            stacklevel=3,
        )


def smallest_delta(noise: Noise, adjacency: Adjacency, *, steps: int) -> float:
    """The smallest delta that allows this noise: 1000 times the probability that its finite range is seen."""
    return noise.tail_risk(2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0, steps) / _TAIL_FRACTION
