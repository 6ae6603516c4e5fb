"""Cost of a single release by dimension: families of optimized noise compared with the Gaussian mechanism.

The families satisfy pure differential privacy, and their noise grows with the dimension; Gaussian noise needs a delta
and grows with its square root. Costs are closed forms: nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from dp_accounting.dp_event import GaussianDpEvent
from torch import Tensor

from sordino.accounting import Adjacency, smallest
from sordino.optimized_noise.costs import AbsoluteCost
from sordino.optimized_noise.fits import best_blocks, isotropic, weighted_laplace
from sordino.report.markup import ACCENT, DASHES, FAINT
from sordino_papers.harness.entry import SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import read_numbers, write_numbers

DIMENSIONS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000)
SPREADS = (0.0, 1.0, 2.0)
EPSILONS = (0.1, 1.0)
DELTA = 1e-5
_SHOWN = (1, 10, 100, 10_000)
FAMILIES = {"isotropic L2": isotropic, "weighted Laplace": weighted_laplace, "blocks": best_blocks}


@dataclass(frozen=True)
class ReleaseCosts:
    """E sum w_i |z_i| of one release of L2 sensitivity 1, for each family, relative to Gaussian noise."""

    dimension: int
    spread: float
    epsilon: float
    over_gaussian: dict[str, float]


def lognormal_weights(dimension: int, spread: float) -> Tensor:
    """Weights whose logarithms have this standard deviation: quantiles of the distribution, without randomness.

    >>> lognormal_weights(3, 0.0)
    tensor([1., 1., 1.], dtype=torch.float64)
    """
    middles = (torch.arange(dimension, dtype=torch.float64) + 0.5) / dimension
    weights: Tensor = (spread * torch.special.ndtri(middles)).exp()
    return weights


def costs(dimensions: Sequence[int] = DIMENSIONS, delta: float = DELTA) -> tuple[ReleaseCosts, ...]:
    """Costs for all epsilons, spreads and dimensions.

    >>> one, *_ = costs(dimensions=[1])
    >>> one.epsilon, sorted(one.over_gaussian)
    (0.1, ['blocks', 'isotropic L2', 'weighted Laplace'])
    """
    found = []
    for epsilon in EPSILONS:
        std = smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=epsilon, delta=delta)
        for spread in SPREADS:
            for dimension in dimensions:
                weights = lognormal_weights(dimension, spread)
                gaussian = math.sqrt(2 / math.pi) * std * float(weights.sum())
                over = {
                    name: fit(weights, epsilon).expected_cost(weights, AbsoluteCost()) / gaussian
                    for name, fit in FAMILIES.items()
                }
                found.append(ReleaseCosts(dimension, spread, epsilon, over))
    return tuple(found)


def measure_by_dimension(folder: Path, command: str, dimensions: Sequence[int] = DIMENSIONS) -> None:
    """Computes all costs, and writes numbers and a figure."""
    found = costs(dimensions)
    write_numbers(_numbers(folder), {"delta": DELTA, "costs": [vars(one) for one in found]}, command)
    _draw(found, _numbers(folder).with_suffix(".svg"))


def by_dimension(folder: Path) -> SideTable:
    """Side table of the computed costs."""
    numbers = _numbers(folder)
    title = (
        f"What pure noise costs in a single release, E sum w|z|, over Gaussian noise at delta {DELTA:g} "
        "(spread: of the logarithms of weights):"
    )
    if (kept := read_numbers(numbers)) is None:
        return SideTable.not_measured(title)
    found = [ReleaseCosts(**fields) for fields in kept["costs"]]
    head = ("dimension", "epsilon", "spread of weights", *FAMILIES)
    lines = [
        (f"{one.dimension:,}", f"{one.epsilon:g}", f"{one.spread:g}", *(f"{x:.3g}" for x in one.over_gaussian.values()))
        for one in found
        if one.dimension in _SHOWN
    ]
    return SideTable(title, (head, *lines), (numbers.with_suffix(".svg"), numbers))


def _numbers(folder: Path) -> Path:
    return folder / "cost-by-dimension.json"


def _draw(found: Sequence[ReleaseCosts], path: Path) -> None:
    with drawing(path, width=6.4, height=2.6) as figure:
        panels = figure.subplots(1, len(EPSILONS), sharey=True)
        for axes, epsilon in zip(panels, EPSILONS, strict=True):
            for spread, dash in zip(SPREADS, ("-", *DASHES), strict=False):
                line = [one for one in found if (one.epsilon, one.spread) == (epsilon, spread)]
                axes.plot(
                    [one.dimension for one in line],
                    [one.over_gaussian["blocks"] for one in line],
                    linestyle=dash,
                    color=ACCENT,
                    label=f"weights of spread {spread:g}",
                )
            axes.axhline(1.0, color=FAINT, linewidth=0.8)
            axes.set(xscale="log", yscale="log", xlabel="dimension", title=f"epsilon {epsilon:g}")
        panels[0].set_ylabel("cost over Gaussian noise")
        panels[0].legend()
