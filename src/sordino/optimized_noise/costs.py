"""Costs of noise, and checks of the public weights that say how harmful noise is in each coordinate.

In a block of d coordinates with density proportional to exp(-c ||z||_2) the radius is Gamma(d) / c and the direction is
uniform. So E |z_i|^p = moment(d) / c^p, where p is the cost's power.
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
    """The cost E sum_i w_i |z_i|.

    >>> AbsoluteCost().moment(np.array([1, 2]))  # 1 for a Laplace variable, and 4 / pi
    array([1.        , 1.27323954])
    """

    power: ClassVar[int] = 1

    def moment(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """E |z_i| at rate one: d E|u_1|, where E|u_1| = Gamma(d / 2) / (sqrt(pi) Gamma((d + 1) / 2))."""
        # `poch` computes the ratio of gamma functions; the difference of their logarithms has 7 digits at d = 10^8.
        return np.asarray(sizes / (sqrt(pi) * poch(sizes / 2, 0.5)))

    def pointwise(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """The cost of z for a weight of 1."""
        return np.abs(z)


@dataclass(frozen=True)
class SquaredCost:
    """The cost E sum_i w_i z_i^2.

    >>> SquaredCost().moment(np.array([1, 2]))
    array([2., 3.])
    """

    power: ClassVar[int] = 2

    def moment(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """E z_i^2 at rate one: E r^2 / d = d + 1."""
        return np.asarray(sizes + 1.0)

    def pointwise(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """The cost of z for a weight of 1."""
        return np.square(z)


@dataclass(frozen=True)
class SignedCost:
    """The cost E sum_i w_i z_i. It has no optimum: shifting noise costs no privacy and lowers it without limit.

    >>> SignedCost().pointwise(np.array([-1e6]))
    array([-1000000.])
    """

    def pointwise(self, z: NDArray[np.float64]) -> NDArray[np.float64]:
        """The cost of z for a weight of 1."""
        return z


Cost: TypeAlias = AbsoluteCost | SquaredCost
ABSOLUTE = AbsoluteCost()


# The best rates are proportional to the cube root of the weight, so a weight of zero would give unlimited noise. At
# this fraction of the largest weight, a block of one coordinate gets 100 times the noise of the largest weight's.
SMALLEST_SHARE = 1e-6


@dataclass(frozen=True, eq=False)
class CheckedWeights:
    """Weights above zero, and the number of weights that were raised to `SMALLEST_SHARE` of the largest."""

    values: Tensor = field(repr=False)
    floored: int


def usable_weights(weights: Tensor | NDArray[np.floating] | Sequence[float]) -> CheckedWeights:
    """Checks weights, and raises those that are too small.

    Error messages count wrong weights and never show their values, which may come from private rows.

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
        raise UsageError("weights must not all be 0, got zeros only.")
    smallest = torch.clamp(SMALLEST_SHARE * largest, min=torch.finfo(torch.float64).tiny)
    return CheckedWeights(values.clamp(min=smallest), int((values < smallest).sum()))
