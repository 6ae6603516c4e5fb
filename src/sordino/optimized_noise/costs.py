"""Costs of noise, and public weights that say how much noise hurts in each coordinate.

What noise costs. A cost is a type: it says what is expected of a coordinate, and the rest follows.

In a block of d coordinates with density proportional to exp(-c ||z||_2) the radius is Gamma(d) / c and the direction is
uniform. So E |z_i|^p = moment(d) / c^p, where p is the cost's power.

How much noise hurts in each coordinate, checked once for every family of noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import pi, sqrt
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import poch
from torch import Tensor

from sordino.errors import UsageError


@dataclass(frozen=True)
class AbsoluteCost:
    """The expectation of sum_i w_i |z_i|.

    >>> AbsoluteCost().moment(np.array([1, 2]))  # a Laplace variable, and 4 / pi
    array([1.        , 1.27323954])
    """

    power: ClassVar[int] = 1

    def moment(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """E |z_i| at rate one: d E|u_1|, where E|u_1| = Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2))."""
        # A ratio of gamma functions half a step apart: their logarithms would cancel to 7 digits at d = 10^8.
        return np.asarray(sizes / (sqrt(pi) * poch(sizes / 2, 0.5)))

    def pointwise(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """What z costs per weight."""
        return np.abs(z)


@dataclass(frozen=True)
class SquaredCost:
    """The expectation of sum_i w_i z_i^2.

    >>> SquaredCost().moment(np.array([1, 2]))
    array([2., 3.])
    """

    power: ClassVar[int] = 2

    def moment(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """E z_i^2 at rate one: E r^2 / d = d + 1."""
        return np.asarray(sizes + 1.0)

    def pointwise(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """What z costs per weight."""
        return np.square(z)


@dataclass(frozen=True)
class SignedCost:
    """The expectation of sum_i w_i z_i. No noise is best: moving it costs no privacy and lowers this without limit.

    >>> SignedCost().pointwise(np.array([-1e6]))
    array([-1000000.])
    """

    def pointwise(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """What z costs per weight."""
        return z


Cost: TypeAlias = AbsoluteCost | SquaredCost
ABSOLUTE = AbsoluteCost()


# The best rates go with the cube root of a weight, so that a weight of zero would mean noise without limit. At this
# share of the largest weight a coordinate on its own gets 100 times the noise of the one that hurts most.
SMALLEST_SHARE = 1e-6


@dataclass(frozen=True, eq=False)
class CheckedWeights:
    """Weights above zero, and how many of them were raised to `SMALLEST_SHARE` of the largest."""

    values: Tensor = field(repr=False)
    floored: int


def usable_weights(weights: Tensor | NDArray[np.floating] | Sequence[float]) -> CheckedWeights:
    """Refuses what is not a weight, and raises those that are too small.

    A message tells how many weights are wrong and never their values, which may come from private rows.

    >>> usable = usable_weights([4.0, 0.0, 1.0])
    >>> usable.floored, usable.values.tolist()
    (1, [4.0, 4e-06, 1.0])
    """
    values = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if values.dim() != 1 or values.numel() == 0:
        raise UsageError(f"weights must be a vector of at least one number, got shape {tuple(values.shape)}.")
    if wrong := int((~values.isfinite()).sum()):
        raise UsageError(f"weights must be finite, got {wrong} that are not.")
    if wrong := int((values < 0).sum()):
        raise UsageError(f"weights must be at least 0, got {wrong} below.")
    largest = values.max()
    if largest == 0:
        raise UsageError("weights must not all be 0, got nothing that noise could hurt.")
    smallest = torch.clamp(SMALLEST_SHARE * largest, min=torch.finfo(torch.float64).tiny)
    return CheckedWeights(values.clamp(min=smallest), int((values < smallest).sum()))
