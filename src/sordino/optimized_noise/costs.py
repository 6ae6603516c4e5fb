"""What noise costs. A cost is a type: it says what is expected of a coordinate, and the rest follows.

In a block of d coordinates with density proportional to exp(-c ||z||_2) the radius is Gamma(d) / c and the direction is
uniform. So E |z_i|^p = moment(d) / c^p, where p is the cost's power.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import poch


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
