"""Accuracy against epsilon by noise mechanism, and gains of shaped noise, paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from sordino.report.markup import ACCENT, DASHES, FAINT, INK
from sordino_papers.harness.entry import Entry, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import gain

Lines = Mapping[str, Sequence[Entry]]  # by way, one entry per epsilon
_STYLES = tuple((dash, colour) for colour in (ACCENT, INK, FAINT) for dash in ("-", *DASHES[:2]))


def accuracy_curves(panels: Mapping[str, Lines], results: ResultsFile, path: Path, *, seeds: int) -> None:
    """One panel per head, one line per private mechanism."""
    with drawing(path, width=2.9 * len(panels), height=3.0) as figure:
        for axes, (head, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for (way, entries), (dash, colour) in zip(lines.items(), _STYLES, strict=False):
                means = {entry.epsilon: _mean(entry, results, seeds) for entry in entries}
                known = {epsilon: mean for epsilon, mean in sorted(means.items()) if mean is not None}
                if known:
                    axes.plot(list(known), list(known.values()), dash, marker=".", color=colour, label=way)
            axes.set(xscale="log", xlabel="epsilon", title=head)
            if axes.lines:
                axes.legend(fontsize=6)
        figure.axes[0].set_ylabel("test accuracy in percent")


def gains_over(
    pairs: Sequence[tuple[Entry, Entry]], results: ResultsFile, numbers: Path, command: str, *, seeds: int
) -> SideTable:
    """Gain of the second entry of each pair over the first."""
    found = [gain(one, other, results, seeds=seeds) for one, other in pairs]
    plain = [
        {
            "method": one.second.method,
            "over": one.first.method,
            "epsilon": one.second.epsilon,
            "mean": one.mean,
            "half_width": one.half_width,
            "seeds": one.seeds,
        }
        for one in found
    ]
    write_numbers(numbers, {"gains": plain}, command)
    head = ("method", "over", "epsilon", "gain", "seeds")
    lines = [
        (one.second.method, one.first.method, f"{one.second.epsilon:g}", one.shown, str(one.seeds)) for one in found
    ]
    title = "What shaped noise gains over the same noise without a shape, paired by seed (Student's 95 % interval):"
    return SideTable(title, (head, *lines), (numbers,))


def _mean(entry: Entry, results: ResultsFile, seeds: int) -> float | None:
    values = [run["value"] for run in results.of(entry) if run["seed"] < seeds]
    return statistics.mean(values) if values else None
