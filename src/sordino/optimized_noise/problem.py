"""Lower bounds of the cost of any private noise, by a linear program on a grid, and the gaps of the closed forms.

The best noise in one and two dimensions is a linear program over the masses of a density on a grid. Privacy limits the
difference of log-densities across offsets (`Constraint`). The optimal value is, to the solver's seven digits, a lower
bound of the cost of any density, so the gap between a closed form and the optimum is at most its gap to this value:

* Grid. The masses of a density are its averages under hat functions around the grid points. They satisfy every
  constraint between points a whole number of steps apart. Their cost is the density's, because hat functions
  interpolate |z| between grid points without error. For z^2 the interpolation is too large by at most spacing^2 / 4,
  which is subtracted.
* Border. The region beyond the grid is left out with its constraints. Every z there costs at least as much as the best
  closed form, so leaving it out never raises the expectation; `solve` raises an error for a smaller grid.
* Symmetry. Cost and constraints do not change if a coordinate changes its sign, so the density need not change either.
  Points of one quadrant are compared with each other only: reflected points are further away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from math import exp, gcd, hypot, prod
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from sordino._input import validate
from sordino.errors import SordinoError, UsageError
from sordino.optimized_noise.costs import ABSOLUTE, Cost, SignedCost, SquaredCost, usable_weights
from sordino.optimized_noise.fits import best_blocks, isotropic, weighted_laplace

Offset: TypeAlias = tuple[int, ...]

_SLACK = 1e-9  # tolerance for a distance that is a whole number of grid steps up to rounding


class Constraint(Protocol):
    """A constraint on densities: limits on differences of log-densities across offsets."""

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        """Yields offsets in grid steps, each with the largest allowed difference of log-densities."""
        ...


@dataclass(frozen=True)
class WithinSensitivity:
    """The constraint of differential privacy: at most epsilon across any distance up to the sensitivity.

    >>> dict(WithinSensitivity().allowed(1.0, 0.2, 0.1, dimension=1))
    {(-2,): 1.0, (-1,): 1.0, (1,): 1.0, (2,): 1.0}
    """

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        furthest = sensitivity / spacing + _SLACK
        for offset in product(range(-int(furthest), int(furthest) + 1), repeat=dimension):
            if 0 < hypot(*offset) <= furthest:
                yield offset, epsilon


@dataclass(frozen=True)
class PerDistance:
    """The stricter constraint that norms satisfy: at most epsilon / sensitivity per unit of distance, at any distance.

    Points up to `reach` grid steps apart are compared. With a larger reach, paths of steps approximate straight lines
    better.

    >>> dict(PerDistance().allowed(1.0, 0.2, 0.1, dimension=1))
    {(-1,): 0.5, (1,): 0.5}
    """

    reach: int = 3

    def __post_init__(self) -> None:
        validate.count(at_most=16, reach=self.reach)

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        for offset in product(range(-self.reach, self.reach + 1), repeat=dimension):
            if gcd(*offset) == 1:  # the other offsets are multiples of these
                yield offset, hypot(*offset) * spacing * epsilon / sensitivity


Array: TypeAlias = NDArray[np.float64]

_EXACT = WithinSensitivity()
_MOST_POINTS, _MOST_STEPS = 20_000, 100


@dataclass(frozen=True)
class NoiseProblem:
    """Minimizes the expected cost over densities p with ln p(z) - ln p(z + D) <= epsilon for ||D||_2 <= sensitivity.

    >>> problem = NoiseProblem((1.0,), epsilon=1.0, sensitivity=1.0)
    >>> round(problem.solve(spacing=0.1).cost, 3)  # the staircase mechanism has 1 / (2 sinh(1 / 2)) = 0.960
    0.958
    """

    weights: tuple[float, ...]
    epsilon: float
    sensitivity: float
    cost: Cost | SignedCost = ABSOLUTE

    def __post_init__(self) -> None:
        validate.positive(epsilon=self.epsilon, sensitivity=self.sensitivity)
        usable_weights(self.weights)
        if len(self.weights) > 2:
            raise UsageError(f"weights must have one or two entries for a grid, got {len(self.weights)}.")
        if min(self.weights) == 0:
            raise UsageError("weights must be above 0 for a grid, got 0, for which no grid is large enough.")

    def solve(self, *, spacing: float, lengths: float = 10.0, constraint: Constraint = _EXACT) -> LinearProgramSolution:
        """Finds the best masses on a grid that extends to `lengths` times the mean |z_i| of weighted Laplace noise."""
        validate.positive(spacing=spacing, lengths=lengths)
        if spacing > self.sensitivity:
            raise UsageError(f"spacing must be at most the sensitivity {self.sensitivity:g}, got {spacing:g}.")
        axes = self._axes(spacing, lengths)
        allowed = dict(constraint.allowed(self.epsilon, self.sensitivity, spacing, len(axes)))
        ratios = _ratios(tuple(map(len, axes)), allowed)
        copies, costs = self._copies(axes), self._costs(axes)
        best = linprog(  # type: ignore[call-overload]  # the stubs do not know sparse constraints
            (copies * costs).ravel(),
            A_ub=ratios,
            b_ub=np.zeros(ratios.shape[0]),
            A_eq=copies.reshape(1, -1),
            b_eq=[1.0],
            method="highs-ipm",
        )
        if best.status != 0:
            raise SordinoError(f"the linear program at spacing {spacing:g} could not be solved: {best.message}")
        density = best.x.reshape(copies.shape) / spacing ** len(axes)
        return LinearProgramSolution(float(best.fun) - self._interpolated(spacing), axes, density)

    def _axes(self, spacing: float, lengths: float) -> tuple[Array, ...]:
        weights, lipschitz = torch.tensor(self.weights, dtype=torch.float64), self.epsilon / self.sensitivity
        cost = ABSOLUTE if isinstance(self.cost, SignedCost) else self.cost
        extents = lengths * weighted_laplace(weights, lipschitz, cost).expected_absolute().numpy()
        steps = np.ceil(extents / spacing)
        if prod(steps + 1) > _MOST_POINTS or self.sensitivity / spacing > _MOST_STEPS:
            raise UsageError(
                f"spacing must give at most {_MOST_POINTS} points and {_MOST_STEPS} steps per sensitivity, "
                f"got {spacing:g}, which gives {prod(steps + 1):.0f} points."
            )
        if isinstance(self.cost, SignedCost):
            return tuple(spacing * np.arange(-n, n + 1) for n in steps)
        reached = best_blocks(weights, lipschitz, cost).expected_cost(weights, cost) + self._interpolated(spacing)
        beyond = min(np.asarray(self.weights) * self.cost.pointwise(spacing * steps))
        if beyond < reached:
            raise UsageError(f"lengths must reach a cost of {reached:.3g}, got {beyond:.3g} at {lengths:g} lengths.")
        return tuple(spacing * np.arange(n + 1) for n in steps)

    def _interpolated(self, spacing: float) -> float:
        """The largest difference between the cost of a density's masses and the cost of the density."""
        return sum(self.weights) * spacing**2 / 4 if isinstance(self.cost, SquaredCost) else 0.0

    def _costs(self, axes: tuple[Array, ...]) -> Array:
        parts = [w * self.cost.pointwise(axis) for w, axis in zip(self.weights, axes, strict=True)]
        return np.asarray(sum(np.meshgrid(*parts, indexing="ij")))

    def _copies(self, axes: tuple[Array, ...]) -> Array:
        """The number of points of the whole grid that each point represents."""
        folded = [np.where((axis == 0) | isinstance(self.cost, SignedCost), 1.0, 2.0) for axis in axes]
        return np.asarray(prod(np.meshgrid(*folded, indexing="ij")))


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """A lower bound of the cost, and the density that attains it on the points of `axes` (one quadrant, by symmetry).

    >>> solved = LinearProgramSolution(0.5, (np.array([0.0, 1.0]),), np.array([0.5, 0.25]))
    >>> solved.mirrored()[1]
    array([0.25, 0.5 , 0.25])
    """

    cost: float
    axes: tuple[Array, ...] = field(repr=False)
    density: Array = field(repr=False)

    def mirrored(self) -> tuple[tuple[Array, ...], Array]:
        """Returns axes and density of the whole grid."""
        axes = tuple(np.concatenate([-axis[:0:-1], axis]) for axis in self.axes)
        return axes, np.pad(self.density, [(len(axis) - 1, 0) for axis in self.axes], mode="reflect")


def _ratios(shape: tuple[int, ...], allowed: dict[Offset, float]) -> csr_array:
    """The constraint matrix. Each row says that the mass of one point is at most a multiple of another point's mass."""
    points = np.arange(prod(shape)).reshape(shape)
    pairs = [(points[_before(offset, shape)].ravel(), points[_after(offset, shape)].ravel()) for offset in allowed]
    columns = np.stack([np.concatenate(side) for side in zip(*pairs, strict=True)], axis=1)
    multiples = np.repeat([-exp(most) for most in allowed.values()], [len(first) for first, _ in pairs])
    entries = np.stack([np.ones_like(multiples), multiples], axis=1)
    rows = 2 * np.arange(len(columns) + 1)
    return csr_array((entries.ravel(), columns.ravel(), rows), shape=(len(columns), points.size))


def _before(offset: Offset, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(max(0, -by), size - max(0, by)) for by, size in zip(offset, shape, strict=True))


def _after(offset: Offset, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return _before(tuple(-by for by in offset), shape)


_FAMILIES = {"weighted Laplace": weighted_laplace, "isotropic": isotropic, "best blocks": best_blocks}


@dataclass(frozen=True)
class Gap:
    """The cost of a family of noise, and a lower bound of the optimal cost.

    >>> Gap("isotropic", cost=1.1, optimum_at_least=1.0).share
    0.10000000000000009
    """

    family: str
    cost: float
    optimum_at_least: float

    @property
    def share(self) -> float:
        """An upper bound of the family's excess cost, relative to the optimum."""
        return self.cost / self.optimum_at_least - 1


def gaps(problem: NoiseProblem, solved: LinearProgramSolution) -> tuple[Gap, ...]:
    """Returns the gap of each family.

    >>> problem = NoiseProblem((1.0, 0.3), epsilon=1.0, sensitivity=1.0)
    >>> [round(gap.cost, 3) for gap in gaps(problem, problem.solve(spacing=1.0))]
    [1.743, 1.655, 1.655]
    """
    if isinstance(problem.cost, SignedCost):
        raise UsageError("the cost must have an optimum for a gap, got SignedCost.")
    weights, lipschitz = torch.tensor(problem.weights, dtype=torch.float64), problem.epsilon / problem.sensitivity
    cost = problem.cost
    costs = {name: fit(weights, lipschitz, cost).expected_cost(weights, cost) for name, fit in _FAMILIES.items()}
    return tuple(Gap(name, reached, solved.cost) for name, reached in costs.items())
