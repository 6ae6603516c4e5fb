"""How far closed forms are from the best noise of all, in one and two dimensions: values of the linear program."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sordino.optimized_noise import Gap, NoiseProblem, PerDistance, WithinSensitivity, gaps
from sordino.optimized_noise.constraints import Constraint
from sordino_papers.harness.origin import write_numbers
from sordino_papers.harness.side import Side

WEIGHTS = ((1.0,), (1.0, 1.0), (1.0, 0.3), (1.0, 0.1))
EPSILON = SENSITIVITY = 1.0
CONSTRAINTS: dict[str, Constraint] = {"within the sensitivity": WithinSensitivity(), "smooth": PerDistance()}
_LENGTHS = 8.0


@dataclass(frozen=True)
class Distance:
    """A value that no noise is below, and what each family costs."""

    weights: tuple[float, ...]
    constraint: str
    at_least: float
    families: tuple[Gap, ...]


def distances(spacing: float) -> tuple[Distance, ...]:
    """By weights and constraint, at epsilon and sensitivity 1, for the absolute cost.

    >>> [round(one.at_least, 2) for one in distances(spacing=1.0)[:1]]
    [0.85]
    """
    found = []
    for weights in WEIGHTS:
        problem = NoiseProblem(weights, EPSILON, SENSITIVITY)
        for name, constraint in CONSTRAINTS.items():
            solved = problem.solve(spacing=spacing, lengths=_LENGTHS, constraint=constraint)
            found.append(Distance(weights, name, solved.cost, gaps(problem, solved)))
    return tuple(found)


def optimum(folder: Path, command: str, *, spacing: float) -> Side:
    """A table of them, and its numbers."""
    found, numbers = distances(spacing), folder / "optimum.json"
    plain = [
        {
            "weights": one.weights,
            "constraint": one.constraint,
            "at_least": one.at_least,
            "costs": {gap.family: gap.cost for gap in one.families},
        }
        for one in found
    ]
    write_numbers(numbers, {"epsilon": EPSILON, "spacing": spacing, "distances": plain}, command)
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
        f"of {spacing:g}; smooth: the log-density may change by epsilon per sensitivity at any distance):"
    )
    return Side(title, (head, *lines), (numbers,))
