"""Heat map over clip norm and momentum, with the best cell of each row and column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import Row, gain, rows


@dataclass(frozen=True)
class GridCell:
    """A clip norm and a momentum, and whether they satisfy the scaling rule."""

    clip: float
    momentum: float
    entry: Entry
    on_diagonal: bool

    @property
    def constant(self) -> float:
        return self.clip / (1 - self.momentum)


@dataclass(frozen=True)
class ClipMomentumGrid:
    """Cells ordered by clip norm, then by momentum."""

    title: str
    clips: tuple[float, ...]
    momenta: tuple[float, ...]
    cells: tuple[GridCell, ...]

    def lines(self) -> Sequence[tuple[str, Sequence[GridCell]]]:
        """Rows, then columns, with their names."""
        rows = [(f"C {clip:g}", [cell for cell in self.cells if cell.clip == clip]) for clip in self.clips]
        columns = [(f"mu {mu:g}", [cell for cell in self.cells if cell.momentum == mu]) for mu in self.momenta]
        return rows + columns


@dataclass(frozen=True)
class BestCell:
    """Best cell of a row or column, its gain over its neighbors, and whether it is on the diagonal.

    `constant` is C / (1 - mu) of the best cell: by the rule it is equal for all rows and columns. `over` has the gains
    of the diagonal cell over its neighbors, or those of the best cell if there is no diagonal.
    """

    grid: str
    line: str
    place: str
    constant: float
    on_diagonal: bool | None
    over: tuple[str, ...]


def best_of(
    name: str, line: Sequence[GridCell], grid: ClipMomentumGrid, results: ResultsFile, seeds: int
) -> BestCell | None:
    """The best cell, or None if some cell was not run. It is selected on the same seeds, which favors it."""
    means = [row.ours for row in rows([cell.entry for cell in line], results, seeds=seeds)]
    known = [mean for mean in means if mean is not None]
    if len(known) < len(line):
        return None
    best = known.index(max(known))
    ruled = next((place for place, cell in enumerate(line) if cell.on_diagonal), None)
    compared = best if ruled is None else ruled
    neighbours = [place for place in (compared - 1, compared + 1) if 0 <= place < len(line)]
    over = tuple(
        f"{gain(line[place].entry, line[compared].entry, results, seeds=seeds).shown} over {_other(name, line[place])}"
        for place in neighbours
    )
    on_diagonal = None if ruled is None else best == ruled
    return BestCell(grid.title, name, _other(name, line[best]), line[best].constant, on_diagonal, over)


def grid_side(grids: Sequence[ClipMomentumGrid], scale: RunScale, seeds: int, folder: Path, command: str) -> SideTable:
    """One line for each row and column of each grid, and the grids as a figure."""
    results = ResultsFile(folder / "runs.jsonl")
    picture, numbers = folder / f"grid-{scale}.svg", folder / f"grid-{scale}.json"
    found = [(grid, rows([cell.entry for cell in grid.cells], results, seeds=seeds)) for grid in grids]
    write_numbers(numbers, {"grids": [_plain(grid, row) for grid, row in found]}, command)
    _draw(found, picture)
    lines = [
        _line(best)
        for grid in grids
        for name, line in grid.lines()
        if (best := best_of(name, line, grid, results, seeds)) is not None
    ]
    head = ("grid", "row or column", "best at", "C / (1 - mu)", "on the diagonal", "the diagonal, or the best, gains")
    title = "Where the best of each row and column lies, and gains over neighbours, paired by seed (95 % intervals):"
    return SideTable(title, (head, *lines), (picture, numbers))


def _other(name: str, cell: GridCell) -> str:
    """Names a cell by the setting that its row or column leaves open."""
    return f"mu {cell.momentum:g}" if name.startswith("C") else f"C {cell.clip:g}"


def _line(best: BestCell) -> tuple[str, ...]:
    diagonal = "there is none" if best.on_diagonal is None else "yes" if best.on_diagonal else "no"
    return best.grid, best.line, best.place, f"{best.constant:.3g}", diagonal, "; ".join(best.over)


def _plain(grid: ClipMomentumGrid, found: Sequence[Row]) -> dict[str, object]:
    cells = [
        {
            "clip": cell.clip,
            "momentum": cell.momentum,
            "on_diagonal": cell.on_diagonal,
            "mean": row.ours,
            "sem": row.sem,
        }
        for cell, row in zip(grid.cells, found, strict=True)
    ]
    return {"title": grid.title, "cells": cells}


def _draw(grids: Sequence[tuple[ClipMomentumGrid, Sequence[Row]]], path: Path) -> None:
    with drawing(path, width=3.0 * len(grids), height=2.8) as figure:
        for axes, (grid, found) in zip(figure.subplots(1, len(grids), squeeze=False).flatten(), grids, strict=True):
            _fill(axes, grid, [row.ours for row in found])
        figure.supxlabel("framed: C / (1 - mu) of earlier work; each grid has colours of its own", fontsize=7)


def _fill(axes: Axes, grid: ClipMomentumGrid, means: Sequence[float | None]) -> None:
    """Draws a heat map with its numbers; frames mark the diagonal."""
    values = np.array([np.nan if mean is None else mean for mean in means]).reshape(len(grid.clips), len(grid.momenta))
    low, high = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (0.0, 1.0)
    axes.imshow(values, cmap="Blues", vmin=low, vmax=high)
    for cell, mean in zip(grid.cells, means, strict=True):
        row, column = grid.clips.index(cell.clip), grid.momenta.index(cell.momentum)
        if mean is not None:
            colour = "white" if mean > (low + high) / 2 else "black"
            axes.text(column, row, f"{mean:.1f}", ha="center", va="center", color=colour)
        if cell.on_diagonal:
            axes.add_patch(Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor="crimson"))
    axes.set(title=grid.title, xlabel="momentum mu", ylabel="clip C")
    axes.set_xticks(range(len(grid.momenta)), [f"{mu:g}" for mu in grid.momenta])
    axes.set_yticks(range(len(grid.clips)), [f"{clip:g}" for clip in grid.clips])
