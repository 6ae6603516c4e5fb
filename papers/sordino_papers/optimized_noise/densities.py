"""Figures of noise densities: the optimum next to closed forms, in one and two dimensions."""

from __future__ import annotations

from math import exp
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes

from sordino.optimized_noise import (
    AbsoluteCost,
    BlockNorm,
    LinearProgramSolution,
    NoiseProblem,
    PerDistance,
    WithinSensitivity,
    isotropic,
    weighted_laplace,
)
from sordino.optimized_noise.problem import Constraint
from sordino_papers.harness.page import drawing

EPSILON = SENSITIVITY = 1.0
LINE, PLANE = (1.0,), (1.0, 0.3)
_SHOWN = 4.0  # sensitivities from the middle
_LEVELS = np.exp(-np.arange(6.5, 0.0, -1.0))  # of the height in the middle, and between the steps of a staircase


def draw_line(path: Path, spacing: float = 0.05) -> None:
    """Draws the staircase of the linear program and Laplace noise, in one dimension."""
    problem = NoiseProblem(LINE, EPSILON, SENSITIVITY)
    solved = problem.solve(spacing=spacing)
    laplace = weighted_laplace(torch.tensor(LINE), EPSILON / SENSITIVITY)
    (x,), best = solved.mirrored()
    with drawing(path, width=4.5, height=2.8) as figure:
        axes = figure.subplots()
        axes.step(x, best, where="mid", color="C0", label=f"best: at least {solved.cost:.3f}")
        axes.plot(x, _heights(laplace, x[:, None]), "--", color="C1", label=f"Laplace: {_cost(laplace, LINE):.3f}")
        axes.set(xlim=(-_SHOWN, _SHOWN), yscale="log", ylim=(best.max() * exp(-_SHOWN - 1), 1.5 * best.max()))
        axes.set(xlabel="noise, in sensitivities", ylabel=f"density at epsilon {EPSILON:g}")
        axes.legend(loc="lower center", title="expected size")


def draw_plane(path: Path, spacing: float = 0.25) -> None:
    """Draws contours in two dimensions: the optimum under either constraint, isotropic and weighted Laplace noise."""
    problem, weights = NoiseProblem(PLANE, EPSILON, SENSITIVITY), torch.tensor(PLANE)
    programs: dict[str, Constraint] = {"best": WithinSensitivity(), "best, smooth": PerDistance()}
    families = {"isotropic": isotropic, "weighted Laplace": weighted_laplace}
    with drawing(path, width=8.0, height=2.4) as figure:
        panels = figure.subplots(1, len(programs) + len(families), sharex=True, sharey=True)
        for axes, (name, constraint) in zip(panels, programs.items(), strict=False):
            solved = problem.solve(spacing=spacing, lengths=8.0, constraint=constraint)
            _contours(axes, solved, solved.mirrored()[1], f"{name}: at least {solved.cost:.3f}")
        for axes, (name, fit) in zip(panels[len(programs) :], families.items(), strict=True):
            noise = fit(weights, EPSILON / SENSITIVITY)
            heights = _heights(noise, np.stack(np.meshgrid(*solved.mirrored()[0], indexing="ij"), axis=-1))
            _contours(axes, solved, heights, f"{name}: {_cost(noise, PLANE):.3f}")
        panels[0].set(ylabel=f"second coordinate, weight {PLANE[1]:g}")


def _contours(axes: Axes, grid: LinearProgramSolution, heights: np.ndarray, title: str) -> None:
    (x, y), _ = grid.mirrored()
    axes.contourf(x, y, heights.T, heights.max() * np.append(_LEVELS, 1.001), cmap="Blues", norm="log")
    axes.set(xlim=(-_SHOWN, _SHOWN), ylim=(-_SHOWN, _SHOWN), aspect="equal", xlabel=f"first, weight {PLANE[0]:g}")
    axes.set_title(title, fontsize=8)


def _heights(noise: BlockNorm, points: np.ndarray) -> np.ndarray:
    return noise.log_density(torch.from_numpy(points)).exp().numpy()


def _cost(noise: BlockNorm, weights: tuple[float, ...]) -> float:
    return noise.expected_cost(torch.tensor(weights), AbsoluteCost())
