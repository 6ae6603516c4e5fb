"""A pair of distributions made from a privacy curve, so that what has a curve composes like any other mechanism.

Let H(a) be the hockey-stick divergence of a mechanism, at most delta(log a) for a >= 1 in both directions. Below 1 it
is 1 - a + a H(1 / a) of the other direction. H is convex, so the largest convex function below a bound at some points,
and straight in between, is a bound too; and a convex function that falls from 1 at 0 belongs to a pair of distributions
(Zhu, Dong and Wang 2022), whose losses are where it bends.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from sordino.accounting.dominating import Losses, Reals


@dataclass(frozen=True)
class ProfilePair:
    """The pair of a curve by its deltas at `epsilons` of at least 0 that rise. Backwards it is the same.

    >>> nodes = ProfilePair(epsilons=(0.0, 1.0), deltas=(0.5, 0.0)).losses(log_tail=-50.0)
    >>> round(float(nodes.mass.sum()), 12), round(float(nodes.mass @ np.maximum(-np.expm1(-nodes.loss), 0)), 9)
    (1.0, 0.462117157)
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        loss, mass = self._bends()
        # Symmetry: what has a loss under one distribution has minus that loss under the other one.
        both = np.concatenate([loss, -loss[loss > 0]])
        mass = np.concatenate([mass, (mass * np.exp(-loss))[loss > 0]])
        both = np.maximum(both, least)
        return Losses(both, mass, self.deltas[-1], float(both.max()))

    def _bends(self) -> tuple[Reals, Reals]:
        """The losses of at least 0 and their probabilities."""
        a, h = np.exp(np.array(self.epsilons)), np.array(self.deltas)
        kept: list[int] = []  # the lower convex hull of what lies right of the first point kept, from the right
        for place in range(len(a) - 1, -1, -1):
            while len(kept) > 1 and _slope(a, h, place, kept[-1]) >= _slope(a, h, kept[-1], kept[-2]):
                kept.pop()
            kept.append(place)
        # Left of the first one is the line to its mirror image at 1 / a, of slope (h - 1) / (a + 1): the steeper one.
        while len(kept) > 1 and _slope(a, h, kept[-1], kept[-2]) < (h[kept[-1]] - 1) / (a[kept[-1]] + 1):
            kept.pop()
        kept.reverse()
        slopes = np.append([_slope(a, h, *each) for each in itertools.pairwise(kept)], 0.0)
        before = np.append((h[kept[0]] - 1) / (a[kept[0]] + 1), slopes[:-1])
        mass = np.maximum(a[kept] * (slopes - before), 0.0)
        if self.epsilons[kept[0]] == 0:
            mass[0] *= 2  # it is its own mirror image
        return np.array(self.epsilons)[kept], mass


def _slope(a: Reals, h: Reals, left: int, right: int) -> float:
    return float((h[right] - h[left]) / (a[right] - a[left]))
