"""Bounds on the gradient norm during training, and how random sparsification changes them.

Zhu and Blaschko (2023), Theorems 3.2, 3.4 and 3.5, with corrected proofs (CONVERGENCE.md). Letters: G smoothness, gamma
learning rate, T steps, B batch size, C clip norm, sigma noise multiplier, d dimension, r the fraction of coordinates
that a mask zeroes, int(rate * d) / d. The theorems assume a new mask in every step: a mask that lasts for several steps
depends on the iterates.

Bounds are on squared gradient norms. They are not functions of data, and say nothing about privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from sordino._input import validate
from sordino.errors import UsageError


@dataclass(frozen=True)
class Objective:
    """A loss with a Lipschitz gradient of constant `smoothness`. `loss_gap` is E L(w_1) - min L."""

    smoothness: float
    loss_gap: float
    dimension: int

    def __post_init__(self) -> None:
        validate.positive(smoothness=self.smoothness)
        validate.between(0, float("inf"), loss_gap=self.loss_gap)
        validate.count(dimension=self.dimension)


@dataclass(frozen=True)
class ClippedDescent:
    """SGD on the mean of clipped gradients, with noise of `noise_multiplier` clip norms on their sum."""

    learning_rate: float
    steps: int
    batch_size: float
    clip_norm: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        validate.positive(learning_rate=self.learning_rate, batch_size=self.batch_size, clip_norm=self.clip_norm)
        validate.count(steps=self.steps)
        validate.between(0, float("inf"), noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Tradeoff:
    """The term that sparsification increases, `delta_c`, and the one that it reduces: `noise`, gamma times
    `delta_sigma`.

    >>> objective = Objective(smoothness=1.0, loss_gap=1.0, dimension=10_000)
    >>> descent = ClippedDescent(0.5, 1000, batch_size=100, clip_norm=1.0, noise_multiplier=2.0)
    >>> tradeoff = Tradeoff.of(objective, descent)
    >>> tradeoff
    Tradeoff(delta_c=0.252, noise=1.0)
    >>> tradeoff.bound(rate=0.0, kappa=1.0), round(tradeoff.best_rate(), 3)
    (1.252, 0.748)
    """

    delta_c: float
    noise: float

    def __post_init__(self) -> None:
        validate.positive(delta_c=self.delta_c)
        validate.between(0, float("inf"), noise=self.noise)

    @classmethod
    def of(cls, objective: Objective, descent: ClippedDescent, *, asymmetry: float = 0.0) -> Tradeoff:
        """Delta_C = gap / (gamma T) + gamma G C^2 / 2 - asymmetry, and gamma Delta_sigma.

        `asymmetry` is the mean of b'_t: what deviations that are not symmetric add to the progress of a step.
        """
        gamma = descent.learning_rate
        progress = objective.loss_gap / (gamma * descent.steps)
        overshoot = gamma * objective.smoothness * descent.clip_norm**2 / 2
        return cls(progress + overshoot - asymmetry, gamma * delta_sigma(objective, descent))

    def bound(self, rate: float, kappa: float) -> float:
        """The mean over all steps of P(|xi| < 3C/4) min(|grad|, C/4) |grad| is at most this: Theorem 3.5.

        Without noise it is Theorem 3.4. kappa is the mean of the steps' own, each weighted by its term on the left; it
        is at least 1 - rate always, and at most 1 if at least sqrt(1 - rate) of deviations xi are shorter than 3C/4.

        >>> Tradeoff(delta_c=1.0, noise=4.0).bound(rate=0.75, kappa=0.5)
        4.0
        """
        validate.between(0, 1, high_open=True, rate=rate)
        validate.positive(kappa=kappa)
        if kappa < (1 - rate) * (1 - 1e-9):
            raise UsageError(f"kappa must be at least 1 - rate = {1 - rate:g}, got {validate.shown(kappa)}.")
        return (self.delta_c + (1 - rate) * self.noise) / kappa

    def best_rate(self, exponent: float = 0.5) -> float:
        """The rate that makes the bound smallest if kappa = (1 - rate) ** exponent.

        With s = 1 - r the bound is U = Delta_C s^-a + gamma Delta_sigma s^(1-a), which is smallest at
        s = a Delta_C / ((1 - a) gamma Delta_sigma); for a = 1/2, r* = max(0, 1 - Delta_C / (gamma Delta_sigma)). The
        paper's equations 114 to 116 lack gamma: they add squares of a gradient to a number of another unit.

        >>> Tradeoff(delta_c=1.0, noise=4.0).best_rate()
        0.75
        >>> Tradeoff(delta_c=1.0, noise=4.0).best_rate(exponent=1.0)
        0.0
        """
        validate.between(0, 1, low_open=True, exponent=exponent)
        enlarged, reduced = exponent * self.delta_c, (1 - exponent) * self.noise
        return 1 - enlarged / reduced if reduced > enlarged else 0.0


def delta_sigma(objective: Objective, descent: ClippedDescent) -> float:
    """C^2 sigma^2 d G / (2 B^2). Multiplied by the learning rate it has the unit of a squared gradient norm.

    >>> descent = ClippedDescent(0.1, 10, batch_size=10, clip_norm=1.0, noise_multiplier=3.0)
    >>> delta_sigma(Objective(1.0, 1.0, 200), descent)
    9.0
    """
    noise_std = descent.clip_norm * descent.noise_multiplier / descent.batch_size
    return noise_std**2 * objective.dimension * objective.smoothness / 2


def supposed_kappa(rate: float) -> float:
    """sqrt(1 - rate): the paper's assumption, between the two proved limits.

    `best_rate` uses it by default. If few gradients are clipped, kappa is 1 - rate and sparsification gains nothing.

    >>> supposed_kappa(0.75)
    0.5
    """
    validate.between(0, 1, high_open=True, rate=rate)
    return sqrt(1 - rate)


def noisy_sgd_bound(
    objective: Objective, *, steps: int, batch_size: float, noise_std: float, deviation: float, rate: float
) -> float:
    """The mean of |grad|^2 over all steps of length 1 / (G sqrt(T)) without a clip is at most this: Theorem 3.2.

    `noise_std` is that of each coordinate of the sum over a batch of independent examples. `deviation` is the root mean
    square length of an example's gradient minus the mean, at most. It only rises with the rate.

    >>> objective = Objective(smoothness=1.0, loss_gap=1.0, dimension=100)
    >>> [noisy_sgd_bound(objective, steps=4, batch_size=5, noise_std=1, deviation=5, rate=r) for r in (0.0, 0.5)]
    [5.5, 6.5]
    """
    validate.count(steps=steps)
    validate.positive(batch_size=batch_size)
    validate.between(0, float("inf"), noise_std=noise_std, deviation=deviation)
    validate.between(0, 1, high_open=True, rate=rate)
    noise = deviation**2 / batch_size + objective.dimension * (noise_std / batch_size) ** 2
    return (2 * objective.smoothness * objective.loss_gap / (1 - rate) + noise) / sqrt(steps)
