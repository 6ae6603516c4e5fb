"""Optimized noise as a linear program over a grid, and how far closed forms are from its optimum.

What privacy asks of a density on a grid: by how much its logarithm may differ across which offsets.

The best noise of all, in one and two dimensions: a linear program over the masses of a density on a grid.

Its value is, to the solver's seven digits, a lower bound of what any density can reach. So a closed form is at most as
far from the optimum as it is from this value:

* Grid. The masses of a density are its averages under hat functions around the grid points. They keep every constraint
  between points a whole number of steps apart. Their cost is the density's, because hat functions interpolate |z|
  between grid points without error. They interpolate z^2 with at most spacing^2 / 4 too much, which is taken off.
* Border. What lies beyond is left out with its constraints. There every z costs at least what the best closed form
  does, so leaving it out never raises the expectation; `solve` refuses a grid that ends earlier.
* Symmetry. Cost and constraints do not change if a coordinate changes its sign, so neither need the density. Points of
  one quarter are compared with each other only: reflected ones are further away.

How far the closed forms are from the best noise of all.
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

_SLACK = 1e-9  # a distance that is a whole number of grid steps counts as one in spite of rounding


class Constraint(Protocol):
    """What a density must obey, as differences across offsets."""

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        """Offsets in grid steps, each with the largest difference of log-densities across it."""
        ...


@dataclass(frozen=True)
class WithinSensitivity:
    """Differential privacy itself: at most epsilon across any distance up to the sensitivity.

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
    """What norms obey: at most epsilon / sensitivity per unit of any distance, however small.

    Points up to `reach` grid steps apart are compared: with more of them, paths come closer to straight lines.

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
            if gcd(*offset) == 1:  # the others are several of these in a row
                yield offset, hypot(*offset) * spacing * epsilon / sensitivity


Array: TypeAlias = NDArray[np.float64]

_EXACT = WithinSensitivity()
_MOST_POINTS, _MOST_STEPS = 20_000, 100


@dataclass(frozen=True)
class NoiseProblem:
    """Minimise the expected cost over densities p with ln p(z) - ln p(z + D) <= epsilon for ||D||_2 <= sensitivity.

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
            raise UsageError(f"weights must be one or two numbers for a grid, got {len(self.weights)}.")
        if min(self.weights) == 0:
            raise UsageError("weights must be above 0 for a grid, got 0, for which no grid reaches far enough.")

    def solve(self, *, spacing: float, lengths: float = 10.0, constraint: Constraint = _EXACT) -> LinearProgramSolution:
        """The best masses on a grid that reaches so many lengths, each the mean of a weighted Laplace coordinate."""
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
            raise SordinoError(f"the linear program at spacing {spacing:g} must have a solution, got: {best.message}")
        density = best.x.reshape(copies.shape) / spacing ** len(axes)
        return LinearProgramSolution(float(best.fun) - self._interpolated(spacing), axes, density)

    def _axes(self, spacing: float, lengths: float) -> tuple[Array, ...]:
        weights, lipschitz = torch.tensor(self.weights, dtype=torch.float64), self.epsilon / self.sensitivity
        cost = ABSOLUTE if isinstance(self.cost, SignedCost) else self.cost
        extents = lengths * weighted_laplace(weights, lipschitz, cost).expected_absolute().numpy()
        steps = np.ceil(extents / spacing)
        if prod(steps + 1) > _MOST_POINTS or self.sensitivity / spacing > _MOST_STEPS:
            raise UsageError(
                f"spacing must leave at most {_MOST_POINTS} points, and {_MOST_STEPS} steps to the sensitivity, "
                f"got {spacing:g} for {prod(steps + 1):.0f} points."
            )
        if isinstance(self.cost, SignedCost):
            return tuple(spacing * np.arange(-n, n + 1) for n in steps)
        reached = best_blocks(weights, lipschitz, cost).expected_cost(weights, cost) + self._interpolated(spacing)
        beyond = min(np.asarray(self.weights) * self.cost.pointwise(spacing * steps))
        if beyond < reached:
            raise UsageError(f"lengths must reach a cost of {reached:.3g}, got {beyond:.3g} at {lengths:g} lengths.")
        return tuple(spacing * np.arange(n + 1) for n in steps)

    def _interpolated(self, spacing: float) -> float:
        """By how much the masses of a density may cost more than the density."""
        return sum(self.weights) * spacing**2 / 4 if isinstance(self.cost, SquaredCost) else 0.0

    def _costs(self, axes: tuple[Array, ...]) -> Array:
        parts = [w * self.cost.pointwise(axis) for w, axis in zip(self.weights, axes, strict=True)]
        return np.asarray(sum(np.meshgrid(*parts, indexing="ij")))

    def _copies(self, axes: tuple[Array, ...]) -> Array:
        """How many points of the whole grid each point stands for."""
        folded = [np.where((axis == 0) | isinstance(self.cost, SignedCost), 1.0, 2.0) for axis in axes]
        return np.asarray(prod(np.meshgrid(*folded, indexing="ij")))


@dataclass(frozen=True, eq=False)
class LinearProgramSolution:
    """A lower bound of the cost, and the density that reaches it on the points of `axes` (a quarter, by symmetry).

    >>> solved = LinearProgramSolution(0.5, (np.array([0.0, 1.0]),), np.array([0.5, 0.25]))
    >>> solved.mirrored()[1]
    array([0.25, 0.5 , 0.25])
    """

    cost: float
    axes: tuple[Array, ...] = field(repr=False)
    density: Array = field(repr=False)

    def mirrored(self) -> tuple[tuple[Array, ...], Array]:
        """Axes and density of the whole grid."""
        axes = tuple(np.concatenate([-axis[:0:-1], axis]) for axis in self.axes)
        return axes, np.pad(self.density, [(len(axis) - 1, 0) for axis in self.axes], mode="reflect")


def _ratios(shape: tuple[int, ...], allowed: dict[Offset, float]) -> csr_array:
    """One row for each two points of the grid: the mass of one is at most a multiple of the other's."""
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
    """What a family costs, and a cost that nothing can be below.

    >>> Gap("isotropic", cost=1.1, optimum_at_least=1.0).share
    0.10000000000000009
    """

    family: str
    cost: float
    optimum_at_least: float

    @property
    def share(self) -> float:
        """By which share of the optimum the family costs more, at most."""
        return self.cost / self.optimum_at_least - 1


def gaps(problem: NoiseProblem, solved: LinearProgramSolution) -> tuple[Gap, ...]:
    """The gap of each family.

    >>> problem = NoiseProblem((1.0, 0.3), epsilon=1.0, sensitivity=1.0)
    >>> [round(gap.cost, 3) for gap in gaps(problem, problem.solve(spacing=1.0))]
    [1.743, 1.655, 1.655]
    """
    if isinstance(problem.cost, SignedCost):
        raise UsageError("a gap needs a cost that has an optimum, got SignedCost.")
    weights, lipschitz = torch.tensor(problem.weights, dtype=torch.float64), problem.epsilon / problem.sensitivity
    cost = problem.cost
    costs = {name: fit(weights, lipschitz, cost).expected_cost(weights, cost) for name, fit in _FAMILIES.items()}
    return tuple(Gap(name, reached, solved.cost) for name, reached in costs.items())
