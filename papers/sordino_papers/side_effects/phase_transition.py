"""Heat map of accuracy over feature size and noise: figure 1 of Xu and Chen (2026).

Two classes of equal size have features of equal norm. All feature sizes at one noise level are trained together, as a
simulation (see `sordino_papers.side_effects.two_patch_world.swarm`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.kernel.randomness import Key
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.side_effects.two_patch_world import (
    PatchDescent,
    PatchNetwork,
    one_feature_each,
    outcomes,
    train_side_by_side,
)

LOW, MIDDLE, HIGH = 0.6, 0.75, 0.95
_PER_CLASS = 500
_CHOSEN = "ours, by sweeps over draws of the world: few and short steps, so that nothing is learnt for ever."


@dataclass(frozen=True)
class PhaseGrid:
    """Grid of feature sizes and noise levels, and the training at each point."""

    feature_norms: tuple[float, ...]
    noise_stds: tuple[float, ...]
    examples: int
    dimension: int
    filters: int
    patch_noise: float = 0.2
    steps: int = 50

    def descent(self, noise_std: float) -> PatchDescent:
        return PatchDescent(noise_std, learning_rate=0.4 * self.filters, steps=self.steps)

    def accuracies(self, noise_std: float, seed: int) -> list[float]:
        """One accuracy per feature size, at one noise level."""
        key, count = Key.from_seed(seed), len(self.feature_norms)
        worlds = [
            one_feature_each(norm, dimension=self.dimension, patch_noise=self.patch_noise)
            for norm in self.feature_norms
        ]
        networks = train_side_by_side(
            [PatchNetwork(self.dimension, self.filters, seed=seed)] * count,
            [world.draw(self.examples, key.stream("training rows")) for world in worlds],
            [self.descent(noise_std)] * count,
            key.stream(f"training at noise {noise_std!r}"),
        )
        found = []
        for network, world in zip(networks, worlds, strict=True):
            rows = world.draw_evenly(_PER_CLASS, key.stream("test rows"))
            found.append(float(np.mean([outcome.accuracy for outcome in outcomes(network, world, rows)])))
        return found


def _spread(low: float, high: float, number: int) -> tuple[float, ...]:
    return tuple(float(f"{x:.3g}") for x in np.geomspace(low, high, number))


GRIDS = {
    RunScale.QUICK: PhaseGrid(_spread(0.05, 3.2, 7), _spread(0.005, 0.08, 5), examples=100, dimension=100, filters=10),
    RunScale.CPU: PhaseGrid(_spread(0.05, 3.2, 19), _spread(0.0025, 0.16, 13), examples=200, dimension=100, filters=10),
    RunScale.PAPER: PhaseGrid(
        _spread(0.05, 3.2, 25), _spread(0.0025, 0.16, 19), examples=1000, dimension=400, filters=20
    ),
}


@dataclass(frozen=True)
class PhaseTransitionTable:
    """The experiment `phase-transition`."""

    name: str = "phase-transition"
    about: str = (
        "Test accuracy in percent, mean over feature sizes, by the standard deviation of the noise on the mean "
        "gradient,\nin a synthetic world of two classes. The map is below. No epsilon is claimed: a simulation, with "
        "noise given.\nPaper: Xu and Chen (2026), figure 1, a picture only; its sizes were lost, these are ours."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entry(GRIDS[scale], noise_std) for noise_std in GRIDS[scale].noise_stds)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        results = ResultsFile(folder / "runs.jsonl")
        found = [_mean(entry, results, seeds) for entry in self.entries(scale)]
        accuracies = [mean for mean in found if mean is not None]
        return (_map(GRIDS[scale], np.array(accuracies), folder, scale, command),) if None not in found else ()


PHASE_TRANSITION = PhaseTransitionTable()


def reached(feature_norms: Sequence[float], accuracies: Sequence[float], level: float) -> float | None:
    """Feature size from which accuracy is at least `level`, interpolated on a log scale.

    None if it is outside the range of these sizes.

    >>> reached([0.1, 1.0, 10.0], [0.5, 0.7, 0.9], level=0.7)
    1.0
    >>> reached([0.1, 1.0, 10.0], [0.5, 0.7, 0.9], level=0.95) is None
    True
    """
    below = [place for place, accuracy in enumerate(accuracies) if accuracy < level]
    if not below or below[-1] + 1 == len(accuracies):
        return None
    last = below[-1]
    share = (level - accuracies[last]) / (accuracies[last + 1] - accuracies[last])
    return float(feature_norms[last] * (feature_norms[last + 1] / feature_norms[last]) ** share)


def _entry(grid: PhaseGrid, noise_std: float) -> Entry:
    def measure(seed: int) -> Measurement:
        found = grid.accuracies(noise_std, seed)
        return Measurement(100 * float(np.mean(found)), {"accuracies": found})

    settings = {"grid": grid, "noise_std": noise_std}
    return Entry(f"noise {noise_std:g}", "patches", None, None, settings, measure, chosen=_CHOSEN)


def _mean(entry: Entry, results: ResultsFile, seeds: int) -> list[float] | None:
    runs = [run["more"]["accuracies"] for run in results.of(entry) if run["seed"] < seeds]
    return [float(x) for x in np.mean(runs, axis=0)] if runs else None


def _map(grid: PhaseGrid, accuracies: NDArray[np.float64], folder: Path, scale: RunScale, command: str) -> SideTable:
    picture, numbers = folder / f"map-{scale}.svg", folder / f"map-{scale}.json"
    plain = {"feature_norms": grid.feature_norms, "noise_stds": grid.noise_stds, "accuracies": accuracies.tolist()}
    write_numbers(numbers, plain, command)
    _draw(grid, accuracies, picture)
    lines = [(f"{std:g}", *_places(grid, row.tolist())) for std, row in zip(grid.noise_stds, accuracies, strict=True)]
    head = ("noise", *(f"{100 * level:g} % from" for level in (LOW, MIDDLE, HIGH)), "last over first")
    title = "The feature size from which on accuracy is at least so much, and how wide the transition is:"
    return SideTable(title, (head, *lines), (picture, numbers))


def _places(grid: PhaseGrid, accuracies: list[float]) -> list[str]:
    places = [reached(grid.feature_norms, accuracies, level) for level in (LOW, MIDDLE, HIGH)]
    shown = ["-" if place is None else f"{place:.2f}" for place in places]
    width = "-" if places[0] is None or places[2] is None else f"{places[2] / places[0]:.1f}"
    return [*shown, width]


def _draw(grid: PhaseGrid, accuracies: NDArray[np.float64], path: Path) -> None:
    with drawing(path, width=4.4, height=3.2) as figure:
        axes = figure.subplots()
        mesh = axes.pcolormesh(
            grid.feature_norms, grid.noise_stds, 100 * accuracies, cmap="Greys_r", vmin=50, vmax=100, shading="nearest"
        )
        levels = [100 * level for level in (LOW, MIDDLE, HIGH)]
        lines = axes.contour(grid.feature_norms, grid.noise_stds, 100 * accuracies, levels, colors="C1")
        axes.clabel(lines, fmt="%g %%")
        axes.set(xscale="log", yscale="log", xlabel="feature size", ylabel="noise on the mean gradient")
        figure.colorbar(mesh, label="test accuracy in percent")
