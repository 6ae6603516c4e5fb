"""Theorem 5.1 of Zhu and Blaschko (2023): the error of reconstructing a scalar input under noise and a random mask.

A layer with constraint vector k and scalar input x has the gradient g = k x. An attacker who observes m o (g + xi),
with a mask m of rate r and normal noise xi, estimates x by least squares. The expected squared error is
sigma^2 E[1 / ||m o k||^2], which is at least sigma^2 / ((1 - r) ||k||^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.attacks.reconstruction.gallery import MeanWithInterval
from sordino.encodings import RandomSparsify
from sordino.encodings.sparsify import ConstantRate
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.states import Layout

_STEP = 0.1  # step of the quadrature in log t
_NEGLIGIBLE = 1e-14

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SingleLayer:
    """A layer with a scalar input x, whose gradient k x gets noise and a mask of `rate`.

    >>> layer = SingleLayer((1.0, 2.0, 3.0, 4.0), noise_std=0.1, rate=0.5)
    >>> round(layer.lower_bound, 6), round(layer.expected_squared_error, 6)
    (0.000667, 0.000876)
    """

    constraint: tuple[float, ...] = field(repr=False)
    noise_std: float
    rate: float

    def __post_init__(self) -> None:
        validate.between(0, 1, high_open=True, rate=self.rate)
        validate.between(0, 1e30, noise_std=self.noise_std)
        if not self.constraint or not np.isfinite(self.constraint).all():
            raise UsageError(
                f"constraint must be at least one number, and all must be finite: got {len(self.constraint)} numbers."
            )

    @property
    def kept(self) -> int:
        """The number of coordinates that every mask keeps."""
        return len(self.constraint) - int(self.rate * len(self.constraint))

    @property
    def lower_bound(self) -> float:
        """sigma^2 / E||m o k||^2, by Jensen's inequality. `kept` / d is 1 - r if r d is a whole number."""
        square = self.kept / len(self.constraint) * float(np.square(self.constraint).sum())
        return self.noise_std**2 / square if square else math.inf

    @property
    def expected_squared_error(self) -> float:
        """sigma^2 E[1 / ||m o k||^2], exact up to rounding. Infinite if a mask may keep only zeros of k."""
        return self.noise_std**2 * mean_reciprocal(np.square(self.constraint), self.kept)

    def estimate(self, seen: Vector, keep: NDArray[np.bool_]) -> float:
        """x by least squares on the kept coordinates; NaN if k is zero in all of them.

        >>> layer = SingleLayer((1.0, 2.0), noise_std=0.0, rate=0.5)
        >>> layer.estimate(np.array([0.7, 0.0]), np.array([True, False]))
        0.7
        """
        k = np.where(keep, self.constraint, 0.0)
        return float(k @ seen / (k @ k)) if k.any() else math.nan

    def attacked(self, attempts: int, *, seed: int, x: float = 1.0) -> MeanWithInterval:
        """The mean squared error over `attempts` attacks, each with new noise and a new mask of `RandomSparsify`.

        Infinite if one of the masks keeps only zeros of k. The theorem excludes such masks; an attacker cannot.
        """
        validate.count(at_least=2, attempts=attempts)
        key, layout = Key.from_seed(seed), Layout(("k",), ((len(self.constraint),),))
        masks = RandomSparsify(self.rate, 1, attempts, refresh=attempts, schedule=ConstantRate())
        coding, noise = key.stream("coding"), key.stream("noise")
        gradient = x * np.array(self.constraint)
        errors = np.empty(attempts)
        for attempt in range(attempts):
            keep = masks.mask(attempt, layout, coding).numpy()
            seen = np.where(keep, gradient + self.noise_std * noise.normals(len(gradient), step=attempt), 0.0)
            errors[attempt] = (self.estimate(seen, keep) - x) ** 2
        return MeanWithInterval.of(errors.tolist())


def mean_reciprocal(squares: Vector, kept: int) -> float:
    """E[1 / S] for the sum S of a uniformly random subset of `kept` values.

    1 / S is the integral of e^(-t S) over t, and E[e^(-t S)] is a mean of products over subsets, which a recurrence
    computes without cancellation. With t = e^s the trapezoidal rule converges geometrically: the integrand is analytic.

    >>> round(mean_reciprocal(np.array([1.0, 2.0]), 1), 10)
    0.75
    """
    validate.count(at_most=len(squares), kept=kept)
    smallest = float(np.sort(squares)[:kept].sum())
    if smallest == 0:
        return math.inf
    largest = float(np.sort(squares)[-kept:].sum())
    first, last = math.log(_NEGLIGIBLE / largest), math.log(-math.log(_NEGLIGIBLE) / smallest) + 1
    t = np.exp(np.arange(first, last, _STEP))
    return float(_STEP * (t * _mean_product(np.exp(-t[:, None] * squares), kept)).sum())


def _mean_product(factors: Vector, kept: int) -> Vector:
    """The mean over all subsets of `kept` columns of their product, for each row, by a recurrence of positive terms."""
    means = np.zeros((len(factors), kept + 1))
    means[:, 0] = 1.0
    for i in range(1, factors.shape[1] + 1):
        most = min(i, kept)
        sizes = np.arange(1, most + 1)
        with_it = sizes / i * means[:, :most] * factors[:, i - 1 : i]
        means[:, 1 : most + 1] = (1 - sizes / i) * means[:, 1 : most + 1] + with_it
    return means[:, kept]
