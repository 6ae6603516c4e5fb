"""Distance of closed forms from the optimal noise in one and two dimensions, by linear programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sordino.optimized_noise import Gap, NoiseProblem, PerDistance, WithinSensitivity, gaps
from sordino.optimized_noise.problem import Constraint
from sordino_papers.harness.entry import SideTable
from sordino_papers.harness.results_file import read_numbers, write_numbers

WEIGHTS = ((1.0,), (1.0, 1.0), (1.0, 0.3), (1.0, 0.1))
EPSILON = SENSITIVITY = 1.0
CONSTRAINTS: dict[str, Constraint] = {"within the sensitivity": WithinSensitivity(), "smooth": PerDistance()}
_LENGTHS = 8.0


@dataclass(frozen=True)
class DistanceToOptimum:
    """A lower bound on the cost of any noise, and the cost of each family."""

    weights: tuple[float, ...]
    constraint: str
    at_least: float
    families: tuple[Gap, ...]


def distances(spacing: float) -> tuple[DistanceToOptimum, ...]:
    """Distances by weights and constraint, at epsilon and sensitivity 1, for the absolute cost.

    >>> [round(one.at_least, 2) for one in distances(spacing=1.0)[:1]]
    [0.85]
    """
    found = []
    for weights in WEIGHTS:
        problem = NoiseProblem(weights, EPSILON, SENSITIVITY)
        for name, constraint in CONSTRAINTS.items():
            solved = problem.solve(spacing=spacing, lengths=_LENGTHS, constraint=constraint)
            found.append(DistanceToOptimum(weights, name, solved.cost, gaps(problem, solved)))
    return tuple(found)


def measure_optimum(folder: Path, command: str, *, spacing: float) -> None:
    """Solves all linear programs and writes their values."""
    plain = [
        {
            "weights": one.weights,
            "constraint": one.constraint,
            "at_least": one.at_least,
            "costs": {gap.family: gap.cost for gap in one.families},
        }
        for one in distances(spacing)
    ]
    write_numbers(_numbers(folder), {"epsilon": EPSILON, "spacing": spacing, "distances": plain}, command)


def optimum(folder: Path) -> SideTable:
    """Side table of the values."""
    numbers = _numbers(folder)
    if (kept := read_numbers(numbers)) is None:
        return SideTable.not_measured(f"How far closed forms are from the best noise at epsilon {EPSILON:g}:")
    found = [_distance(**fields) for fields in kept["distances"]]
    head = ("weights", "constraint", "best, at least", *(gap.family for gap in found[0].families))
    lines = [
        (
            ", ".join(f"{weight:g}" for weight in one.weights),
            one.constraint,
            f"{one.at_least:.3f}",
            *(f"{gap.cost:.3f} (+{100 * gap.share:.1f} %)" for gap in one.families),
        )
        for one in found
    ]
    title = (
        f"How far closed forms are from the best noise, E sum w|z| at epsilon {EPSILON:g} (linear programs on a grid "
        f"of {kept['spacing']:g}; smooth: the log-density may change by epsilon per sensitivity at any distance):"
    )
    return SideTable(title, (head, *lines), (numbers,))


def _numbers(folder: Path) -> Path:
    return folder / "optimum.json"


def _distance(weights: list[float], constraint: str, at_least: float, costs: dict[str, float]) -> DistanceToOptimum:
    families = tuple(Gap(family, cost, at_least) for family, cost in costs.items())
    return DistanceToOptimum(tuple(weights), constraint, at_least, families)
