"""How far the closed forms are from the best noise of all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sordino.errors import UsageError
from sordino.optimized_noise.costs import SignedCost
from sordino.optimized_noise.fits import best_blocks, isotropic, weighted_laplace
from sordino.optimized_noise.problem import NoiseProblem, Solved

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


def gaps(problem: NoiseProblem, solved: Solved) -> tuple[Gap, ...]:
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
