"""Theorem 5.1 of Zhu and Blaschko (2023): what noise and a random mask leave of an input of one number.

A layer with the constraint vector k has the gradient g = k x. Whoever sees m o (g + xi), with a mask m and normal xi,
finds x by least squares, and is off by sigma^2 E[1 / ||m o k||^2] in square, at least sigma^2 / ((1 - r) ||k||^2).
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

_STEP = 0.1  # of the quadrature, in the logarithm of t
_NEGLIGIBLE = 1e-14

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SingleLayer:
    """A layer with an input of one number, whose gradient k x gets noise and a mask of `rate`.

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
            raise UsageError(f"constraint must be finite numbers, at least one, got {len(self.constraint)} numbers.")

    @property
    def kept(self) -> int:
        """How many coordinates every mask keeps."""
        return len(self.constraint) - int(self.rate * len(self.constraint))

    @property
    def lower_bound(self) -> float:
        """sigma^2 / E||m o k||^2, by Jensen's inequality. `kept` / d is 1 - r where r d is a whole number."""
        square = self.kept / len(self.constraint) * float(np.square(self.constraint).sum())
        return self.noise_std**2 / square if square else math.inf

    @property
    def expected_squared_error(self) -> float:
        """sigma^2 E[1 / ||m o k||^2], exact but for rounding. Infinite where a mask may leave only zeros."""
        return self.noise_std**2 * mean_reciprocal(np.square(self.constraint), self.kept)

    def estimate(self, seen: Vector, keep: NDArray[np.bool_]) -> float:
        """x by least squares on the coordinates that are kept; NaN where all of them are zero in k: nothing is seen.

        >>> layer = SingleLayer((1.0, 2.0), noise_std=0.0, rate=0.5)
        >>> layer.estimate(np.array([0.7, 0.0]), np.array([True, False]))
        0.7
        """
        k = np.where(keep, self.constraint, 0.0)
        return float(k @ seen / (k @ k)) if k.any() else math.nan

    def attacked(self, attempts: int, *, seed: int, x: float = 1.0) -> MeanWithInterval:
        """The squared error of so many attacks, each on fresh noise under a fresh mask of the encoding that trains.

        Infinite as soon as a mask leaves only zeros: the theorem leaves these out, and whoever attacks cannot.
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
    """E[1 / S] for the sum S of `kept` of the numbers, all sets of so many being equally likely.

    1 / S is the integral of e^(-t S), and E[e^(-t S)] is a mean of products over sets, which a recurrence gives without
    a difference. With t = e^s the trapezoidal rule converges geometrically: the integrand is analytic.

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
    """Of each row the mean product of `kept` columns, over all sets of so many, by a positive recurrence."""
    means = np.zeros((len(factors), kept + 1))
    means[:, 0] = 1.0
    for i in range(1, factors.shape[1] + 1):
        most = min(i, kept)
        sizes = np.arange(1, most + 1)
        with_it = sizes / i * means[:, :most] * factors[:, i - 1 : i]
        means[:, 1 : most + 1] = (1 - sizes / i) * means[:, 1 : most + 1] + with_it
    return means[:, kept]
