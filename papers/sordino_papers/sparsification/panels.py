"""Panels of accuracy against the final rate: figure, gain of the best rate, agreement of panels with equal noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from matplotlib.axes import Axes

from sordino.report.markup import ACCENT, FAINT
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import Gain, Row, gain, rows

_PANELS_IN_A_ROW = 3


@dataclass(frozen=True)
class Panel:
    """One entry per rate, from 0 up. `noise` is sigma C if there are both noise and a clip."""

    title: str
    rates: tuple[float, ...]
    entries: tuple[Entry, ...]
    noise: float | None = None

    def gain_at_last(self, results: ResultsFile, seeds: int) -> Gain:
        """Gain of the largest rate over rate 0."""
        return gain(self.entries[0], self.entries[-1], results, seeds=seeds)

    def best(self, results: ResultsFile, seeds: int) -> tuple[float, Gain] | None:
        """The rate above 0 with the largest gain, and its gain; None if nothing was run."""
        none, *others = self.entries
        gains = [gain(none, other, results, seeds=seeds) for other in others]
        known = [(one.mean, rate, one) for rate, one in zip(self.rates[1:], gains, strict=True) if one.mean is not None]
        return max(known, key=lambda found: found[0])[1:] if known else None


def gains_by_panel(panels: Sequence[Panel], scale: RunScale, seeds: int, folder: Path, command: str) -> SideTable:
    """One line per panel, and a figure of all panels."""
    results = ResultsFile(folder / "runs.jsonl")
    picture, numbers = folder / f"tradeoff-{scale}.svg", folder / f"tradeoff-{scale}.json"
    write_numbers(numbers, {"panels": [_plain(panel, results, seeds) for panel in panels]}, command)
    _draw([(panel, rows(panel.entries, results, seeds=seeds)) for panel in panels], picture)
    head = ("panel", "epsilon", f"gain at {panels[0].rates[-1]:g}", "best rate", "its gain")
    title = (
        "Gains over no sparsification, paired by seed (Student's 95 % interval). The best rate was chosen on the same\n"
        "seeds, which flatters it; the largest was fixed before:"
    )
    return SideTable(title, (head, *(_line(panel, results, seeds) for panel in panels)), (picture, numbers))


def equal_noise(panels: Sequence[Panel], seeds: int, folder: Path) -> SideTable:
    """Compares the gains of panels with equal sigma C at the largest rate.

    The interval of a difference treats the two gains as independent. They share seeds, so the interval is too wide.
    """
    results, lines = ResultsFile(folder / "runs.jsonl"), list[tuple[str, ...]]()
    for one, other in combinations(panels, 2):
        if one.noise is not None and one.noise == other.noise:
            lines.append(_agreement(one, other, results, seeds))
    head = ("sigma C", "one", "other", "their gains", "difference", "agree")
    title = f"Do panels of equal noise gain as much, at rate {panels[0].rates[-1]:g}:"
    return SideTable(title, (head, *sorted(lines, key=lambda line: float(line[0]))), ())


def _agreement(one: Panel, other: Panel, results: ResultsFile, seeds: int) -> tuple[str, ...]:
    first, second = one.gain_at_last(results, seeds), other.gain_at_last(results, seeds)
    names = f"{one.noise:g}", one.title, other.title, f"{first.shown} and {second.shown}"
    if first.mean is None or second.mean is None:
        return *names, "-", "-"
    difference = second.mean - first.mean
    if first.half_width is None or second.half_width is None:
        return *names, f"{difference:+.1f}", "unknown: one seed"
    half = math.hypot(first.half_width, second.half_width)
    return *names, f"{difference:+.1f} ± {half:.1f}", "yes" if abs(difference) <= half else "no"


def _line(panel: Panel, results: ResultsFile, seeds: int) -> tuple[str, ...]:
    epsilon, best = panel.entries[0].epsilon, panel.best(results, seeds)
    return (
        panel.title,
        "none" if epsilon is None else f"{epsilon:g}",
        panel.gain_at_last(results, seeds).shown,
        "-" if best is None else f"{best[0]:g}",
        "-" if best is None else best[1].shown,
    )


def _plain(panel: Panel, results: ResultsFile, seeds: int) -> dict[str, object]:
    found = rows(panel.entries, results, seeds=seeds)
    gains = [gain(panel.entries[0], entry, results, seeds=seeds) for entry in panel.entries]
    return {
        "title": panel.title,
        "epsilon": panel.entries[0].epsilon,
        "rates": panel.rates,
        "means": [row.ours for row in found],
        "sems": [row.sem for row in found],
        "gains": [one.mean for one in gains],
        "half_widths": [one.half_width for one in gains],
    }


def _draw(panels: Sequence[tuple[Panel, Sequence[Row]]], path: Path) -> None:
    lines = -(-len(panels) // _PANELS_IN_A_ROW)
    with drawing(path, width=2.4 * _PANELS_IN_A_ROW, height=1.7 * lines) as figure:
        grid = figure.subplots(lines, _PANELS_IN_A_ROW, squeeze=False, sharex=True, sharey=True).flatten()
        for axes, (panel, found) in zip(grid, panels, strict=False):
            promised = "" if panel.entries[0].epsilon is not None else ", not private"
            axes.set_title(panel.title + promised, fontsize=8)
            _fill(axes, [(rate, row) for rate, row in zip(panel.rates, found, strict=True) if row.ours is not None])
        figure.supxlabel("final rate")
        figure.supylabel("accuracy above that without sparsification, points")


def _fill(axes: Axes, points: Sequence[tuple[float, Row]]) -> None:
    """Draws differences of means with standard errors; the dashed line is training without sparsification."""
    if points:
        none = points[0][1].ours or 0.0
        above, errors = [(row.ours or 0.0) - none for _, row in points], [row.sem or 0.0 for _, row in points]
        axes.axhline(0.0, color=FAINT, linestyle="--", linewidth=0.8)
        axes.errorbar([rate for rate, _ in points], above, yerr=errors, fmt="o-", color=ACCENT, markersize=3)
