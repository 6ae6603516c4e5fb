"""Accuracy against the final rate by framework, and the largest rate that loses no accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from sordino.report.markup import ACCENT, FAINT
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import Row, rows

_PANELS_IN_A_ROW = 3


@dataclass(frozen=True)
class RateCurve:
    """Entries of one framework at increasing rates, from 0."""

    title: str
    epsilon: float
    rates: tuple[float, ...]
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class RateCurveResult:
    """Measured rows of a curve."""

    curve: RateCurve
    rows: tuple[Row, ...]

    @property
    def largest(self) -> float | None:
        """Largest rate whose mean is at most one standard error below the mean at rate 0.

        None with fewer than two seeds, which give no standard error.
        """
        none = self.rows[0]
        if none.ours is None or none.sem is None:
            return None
        floor = none.ours - none.sem
        reached = [rate for rate, row in zip(self.curve.rates, self.rows, strict=True) if (row.ours or 0.0) >= floor]
        return max(reached)

    def line(self) -> tuple[str, ...]:
        largest = "-" if self.largest is None else f"{self.largest:g}"
        return self.curve.title, f"{self.curve.epsilon:g}", largest, *(row.shown for row in self.rows)

    def json(self) -> dict[str, object]:
        means, errors = [row.ours for row in self.rows], [row.sem for row in self.rows]
        shown: dict[str, object] = {"framework": self.curve.title, "epsilon": self.curve.epsilon}
        return shown | {"rates": self.curve.rates, "means": means, "sems": errors, "largest": self.largest}


def largest_rates(curves: Sequence[RateCurve], folder: Path, scale: RunScale, seeds: int, command: str) -> SideTable:
    """One line and one panel per framework."""
    results = ResultsFile(folder / "runs.jsonl")
    found = [RateCurveResult(curve, tuple(rows(curve.entries, results, seeds=seeds))) for curve in curves]
    picture, numbers = folder / f"rates-{scale}.svg", folder / f"rates-{scale}.json"
    write_numbers(numbers, {"frameworks": [one.json() for one in found]}, command)
    draw(found, picture)
    head = ("framework", "epsilon", "largest r*", *(f"r* {rate:g}" for rate in curves[0].rates))
    title = "The largest final rate whose mean is within one standard error of training without sparsification:"
    return SideTable(title, (head, *(one.line() for one in found)), (picture, numbers))


def draw(found: Sequence[RateCurveResult], path: Path) -> None:
    """Draws means with standard errors; the band is the standard error at rate 0."""
    lines = -(-len(found) // _PANELS_IN_A_ROW)
    with drawing(path, width=2.6 * _PANELS_IN_A_ROW, height=2.2 * lines) as figure:
        panels = figure.subplots(lines, _PANELS_IN_A_ROW, squeeze=False).flatten()
        for one, panel in zip(found, panels, strict=False):
            _fill(panel, one)
        for panel in panels[len(found) :]:
            panel.set_axis_off()
        figure.supxlabel("bars, and the band around rate 0: one standard error", fontsize=7, color=FAINT)


def _fill(panel: Axes, found: RateCurveResult) -> None:
    points = [(rate, row) for rate, row in zip(found.curve.rates, found.rows, strict=True) if row.ours is not None]
    panel.set(xlabel="final rate", ylabel="accuracy, %")
    panel.set_title(f"{found.curve.title}, epsilon {found.curve.epsilon:g}", fontsize=8)
    if not points:
        return
    none, error = points[0][1].ours or 0.0, points[0][1].sem or 0.0
    panel.axhspan(none - error, none + error, color=FAINT, alpha=0.3, linewidth=0)
    means, errors = [row.ours or 0.0 for _, row in points], [row.sem or 0.0 for _, row in points]
    panel.errorbar([rate for rate, _ in points], means, yerr=errors, fmt="o-", color=ACCENT, capsize=3, markersize=3)
