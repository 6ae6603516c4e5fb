"""What the last iterate alone reveals, where every step contracts: Bok, Su and Altschuler (2024).

Two runs of x <- T_k(x) + noise on neighbouring data are compared. T_k is c_k-Lipschitz, the neighbours' maps differ by
at most d_k in the steps that use the unit (and not at all in the others), and the noise of step k has standard
deviation s_k. Shifted interpolation pays off the distance z_k between the two runs step by step, a_k at a time:

    z_0 = 0,   z_(k+1) = c_k z_k + d_k u_k - a_k,   z_k >= 0,   z_t = 0,   mu^2 = sum_k (a_k / s_k)^2,

and the last iterate is mu-GDP for every such choice of a. The best one is a taut string. With w_k the product of all
later contractions, x_k = w_k a_k has prefix sums below those of w_k d_k u_k and the same total, and minimises
sum_k x_k^2 / (w_k s_k)^2: its path is the lower convex hull of the points (sum (w s)^2, sum w d u).

If both runs stay in a set of diameter D, the distance is never above D: one may start at any step with z = D, and pay
nothing for what came before.

Nothing else may be seen of the run: no earlier iterate, no curve, no choice made by looking.
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
    """The steps of a run: contraction, noise and (when the unit takes part) distance of the neighbours' maps.

    All are in units of the iterate: for gradient descent with step size eta, clip norm C, batch size b and noise of
    standard deviation sigma C on the sum, `noise_std` is eta sigma C / b, and `shift` eta C / b (twice that for
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
        """Equal steps, in units of what one unit moves the iterate by.

        >>> len(Steps.constant(60, contraction=1.0, noise_multiplier=2.0))
        60
        """
        validate.count(steps=steps)
        ones = np.ones(steps)
        return cls(contraction * ones, noise_multiplier * ones, ones)


def mu_of_cycle(
    steps: Steps, *, batches: int, epochs: int, diameter: float | None = None, position: int | None = None
) -> float:
    """The same for the worst-placed unit (or that of batch `position`) when disjoint batches take turns.

    Steps after the last epoch see no data: noise, and whatever public maps they are. They cost the unit of the last
    batch its disadvantage.

    >>> cycle = Steps.constant(60 * 400, contraction=1.0, noise_multiplier=7.5)
    >>> round(mu_of_cycle(cycle, batches=60, epochs=400), 4)
    0.3688
    """
    validate.count(batches=batches, epochs=epochs)
    validate.count(steps=len(steps), at_least=batches * epochs)
    positions = range(batches) if position is None else [position]
    turns = batches * np.arange(epochs)
    return max(mu_of_unit(steps, turns + place, diameter=diameter) for place in positions)


def mu_of_unit(steps: Steps, uses: Wholes, *, diameter: float | None = None) -> float:
    """The Gaussian-DP parameter of the last iterate for a unit that takes part in the steps `uses`, which rise.

    >>> cycle = Steps.constant(4 * 3, contraction=0.9, noise_multiplier=1.0)
    >>> round(mu_of_unit(cycle, np.array([3, 7, 11])), 12)
    1.157551979594
    """
    if len(uses) == 0:
        return 0.0
    weight = np.append(np.cumprod(steps.contraction[::-1])[::-1][1:], 1.0)  # the product of all later contractions
    # From each step to the end: where the noise fades, the last steps' share would be lost in a sum from the start.
    room = np.append(np.cumsum(((weight * steps.noise_std) ** 2)[::-1])[::-1], 0.0)
    owed = weight * steps.shift
    best = _taut(room, uses, owed[uses])
    if diameter is None:
        return best
    validate.positive(diameter=diameter)
    for start in _starts(len(steps), uses):
        later = uses[uses >= start]
        distance = diameter * weight[start] * steps.contraction[start]
        bends, debts = np.append(start, later), np.append(distance, owed[later])
        best = min(best, _taut(room, bends, debts))
    return best


def _taut(room: Reals, bends: Wholes, debts: Reals) -> float:
    """The square root of sum (dY)^2 / dX along the lower convex hull.

    Between two debts nothing is owed anew, so that the hull bends right before a debt only. Its slopes, which never
    fall, are the isotonic regression of the pieces' own slopes with the pieces' lengths as weights.
    """
    lengths = room[bends] - np.append(room[bends[1:]], 0.0)
    # A debt at the same place as the next, or so long ago that its room is no number any more, is paid from there on.
    has_room = lengths > 0
    paid_in: Wholes = np.cumsum(has_room) - has_room
    lengths = lengths[has_room]
    slopes = isotonic_regression(np.bincount(paid_in, weights=debts) / lengths, weights=lengths).x
    return math.sqrt(math.fsum(lengths * slopes**2))


def _starts(steps: int, uses: Wholes) -> Wholes:
    """Where the distance may be counted as the diameter. Every choice is valid; a good one is near the end."""
    near_the_end = steps - np.unique(np.geomspace(1, steps, 300).astype(np.int64))
    starts = np.unique(np.concatenate([uses, uses + 1, near_the_end]))
    return starts[starts < steps]
