"""Privacy of the last iterate alone, if every step is a contraction: Bok, Su and Altschuler (2024).

Compare two runs of x <- T_k(x) + noise on neighboring datasets. T_k is c_k-Lipschitz. The maps of the two datasets
differ by at most d_k in the steps that use the unit (u_k = 1), and are equal in all others (u_k = 0). The noise of step
k has standard deviation s_k. Shifted interpolation reduces the distance z_k of the two runs by a_k in step k:

    z_0 = 0,   z_(k+1) = c_k z_k + d_k u_k - a_k,   z_k >= 0,   z_t = 0,   mu^2 = sum_k (a_k / s_k)^2,

and the last iterate is mu-GDP for every such choice of a. The best choice is a taut string. Let w_k be the product of
all later contractions. Then x_k = w_k a_k has prefix sums below those of w_k d_k u_k and the same total, and minimizes
sum_k x_k^2 / (w_k s_k)^2. Its path is the lower convex hull of the points (sum (w s)^2, sum w d u).

If both runs stay in a set of diameter D, their distance is never above D. So the recursion may start at any step with
z = D, without a cost for the steps before.

The bound holds only if nothing else of the run is observed: no earlier iterate, no learning curve, and no choice that
depends on one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from sordino._input import validate

Reals = NDArray[np.float64]
Wholes = NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """The steps of a run: contraction c_k, noise s_k, and distance d_k of the two maps when the unit takes part.

    All are in units of the iterate. For gradient descent with step size eta, clip norm C, batch size b and noise of
    standard deviation sigma C on the sum, `noise_std` is eta sigma C / b, and `shift` is eta C / b (twice that for
    replace-one).
    """

    contraction: Reals
    noise_std: Reals
    shift: Reals

    def __post_init__(self) -> None:
        lengths = {len(self.contraction), len(self.noise_std), len(self.shift)}
        validate.count(number_of_lengths=len(lengths), at_most=1)
        validate.between(0, 1, low_open=True, contraction=float(self.contraction.min()))
        validate.between(0, 1, contraction=float(self.contraction.max()))
        validate.positive(noise_std=float(self.noise_std.min()), largest_noise_std=float(self.noise_std.max()))
        validate.between(0, 1e300, shift=float(self.shift.min()), largest_shift=float(self.shift.max()))

    def __len__(self) -> int:
        return len(self.contraction)

    @classmethod
    def constant(cls, steps: int, *, contraction: float, noise_multiplier: float) -> Steps:
        """Equal steps, in units of the distance by which one privacy unit moves the iterate.

        >>> len(Steps.constant(60, contraction=1.0, noise_multiplier=2.0))
        60
        """
        validate.count(steps=steps)
        ones = np.ones(steps)
        return cls(contraction * ones, noise_multiplier * ones, ones)


def mu_of_cycle(
    steps: Steps, *, batches: int, epochs: int, diameter: float | None = None, position: int | None = None
) -> float:
    """The Gaussian-DP parameter of the last iterate if disjoint batches take turns, for the worst batch of a unit.

    With `position`, it is for a unit in this batch. Steps after the last epoch use no data: they are public maps with
    noise, which reduce the disadvantage of units in the last batch.

    >>> cycle = Steps.constant(60 * 400, contraction=1.0, noise_multiplier=7.5)
    >>> round(mu_of_cycle(cycle, batches=60, epochs=400), 4)
    0.3688
    """
    validate.count(batches=batches, epochs=epochs)
    validate.count(steps=len(steps), at_least=batches * epochs)
    positions = range(batches) if position is None else [position]
    turns = batches * np.arange(epochs)
    return max(mu_of_unit(steps, turns + batch, diameter=diameter) for batch in positions)


def mu_of_unit(steps: Steps, uses: Wholes, *, diameter: float | None = None) -> float:
    """The Gaussian-DP parameter of the last iterate for a unit that takes part in the steps `uses`, in rising order.

    >>> cycle = Steps.constant(4 * 3, contraction=0.9, noise_multiplier=1.0)
    >>> round(mu_of_unit(cycle, np.array([3, 7, 11])), 12)
    1.157551979594
    """
    if len(uses) == 0:
        return 0.0
    weight = np.append(np.cumprod(steps.contraction[::-1])[::-1][1:], 1.0)  # the product of all later contractions
    # Sums from each step to the end: with decreasing noise, sums from the start would lose the part of the last steps.
    variance_left = np.append(np.cumsum(((weight * steps.noise_std) ** 2)[::-1])[::-1], 0.0)
    shifts = weight * steps.shift
    best = _taut(variance_left, uses, shifts[uses])
    if diameter is None:
        return best
    validate.positive(diameter=diameter)
    for start in _starts(len(steps), uses):
        later = uses[uses >= start]
        distance = diameter * weight[start] * steps.contraction[start]
        bends, distances = np.append(start, later), np.append(distance, shifts[later])
        best = min(best, _taut(variance_left, bends, distances))
    return best


def _taut(variance_left: Reals, bends: Wholes, distances: Reals) -> float:
    """The square root of sum (dY)^2 / dX along the lower convex hull.

    Y increases at the steps `bends` only, by `distances`, so the hull bends right before these steps only. Its slopes,
    which never decrease, are the isotonic regression of the slopes of the pieces, with the pieces' lengths as weights.
    """
    lengths = variance_left[bends] - np.append(variance_left[bends[1:]], 0.0)
    # A piece has length 0 if two starts coincide, or if its variance underflows. Its distance is added to the next one.
    has_length = lengths > 0
    piece_of: Wholes = np.cumsum(has_length) - has_length
    lengths = lengths[has_length]
    slopes = isotonic_regression(np.bincount(piece_of, weights=distances) / lengths, weights=lengths).x
    return math.sqrt(math.fsum(lengths * slopes**2))


def _starts(steps: int, uses: Wholes) -> Wholes:
    """Steps at which the distance may be bounded by the diameter. Every choice is valid; good ones are near the end."""
    near_the_end = steps - np.unique(np.geomspace(1, steps, 300).astype(np.int64))
    starts = np.unique(np.concatenate([uses, uses + 1, near_the_end]))
    return starts[starts < steps]
