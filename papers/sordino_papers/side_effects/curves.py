"""Clean and adversarial accuracy against one varied setting, next to the paper's numbers: side table and figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sordino.report.markup import ACCENT, FAINT, INK
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import gain
from sordino_papers.side_effects.trials import ADVERSARIAL


@dataclass(frozen=True)
class CurvePoint:
    """A position on the axis, its entry, and the paper's accuracy under attack."""

    x: float
    entry: Entry
    paper_adversarial: float | None = None


@dataclass(frozen=True)
class CurveTable:
    """An experiment with one line of points: `line` is its name in the figure, `what` names the varied setting."""

    name: str
    about: str
    line: str
    what: str
    points: Callable[[RunScale], tuple[CurvePoint, ...]]

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(point.entry for point in self.points(scale))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        lines, path = {self.line: self.points(scale)}, folder / f"accuracy-{scale}"
        return (clean_and_adversarial(lines, self.what, path, command, seeds=seeds),)


def clean_and_adversarial(
    lines: Mapping[str, Sequence[CurvePoint]], what: str, path: Path, command: str, *, seeds: int
) -> SideTable:
    """One panel per name. Writes numbers and figure to `path` with .json and .svg.

    Losses are relative to the first point of a line, paired by seed.
    """
    results, picture, numbers = (
        ResultsFile(path.parent / "runs.jsonl"),
        path.with_suffix(".svg"),
        path.with_suffix(".json"),
    )
    found = [_found(name, points[0], point, results, seeds) for name, points in lines.items() for point in points]
    write_numbers(numbers, {"varied": what, "points": [vars(one) for one in found]}, command)
    _draw(found, what, picture)
    head = ("trained", what, "clean", "paper", "against the first", "under attack", "paper", "seeds")
    title = f"Clean and adversarial accuracy by {what}; differences are paired by seed (Student's 95 % interval):"
    return SideTable(title, (head, *(_line(one) for one in found)), (picture, numbers))


@dataclass(frozen=True)
class _CurveRow:
    name: str
    x: float
    clean: float | None
    paper: float | None
    lost: str
    adversarial: float | None
    paper_adversarial: float | None
    seeds: int


def _found(name: str, first: CurvePoint, point: CurvePoint, results: ResultsFile, seeds: int) -> _CurveRow:
    runs = [run for run in results.of(point.entry) if run["seed"] < seeds]
    attacked = [run["more"][ADVERSARIAL] for run in runs]
    return _CurveRow(
        name,
        point.x,
        statistics.mean(run["value"] for run in runs) if runs else None,
        point.entry.paper,
        "-" if point is first else gain(first.entry, point.entry, results, seeds=seeds).shown,
        statistics.mean(attacked) if attacked else None,
        point.paper_adversarial,
        len(runs),
    )


def _line(one: _CurveRow) -> tuple[str, ...]:
    numbers = (_shown(x) for x in (one.clean, one.paper, one.adversarial, one.paper_adversarial))
    clean, paper, adversarial, paper_adversarial = numbers
    return one.name, f"{one.x:g}", clean, paper, one.lost, adversarial, paper_adversarial, str(one.seeds)


def _shown(number: float | None) -> str:
    return "-" if number is None else f"{number:.1f}"


def _draw(found: Sequence[_CurveRow], what: str, path: Path) -> None:
    names = list(dict.fromkeys(one.name for one in found))
    with drawing(path, width=2.9 * len(names), height=2.6) as figure:
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            here = [one for one in found if one.name == name]
            for style, colour, label, values in (
                ("o-", ACCENT, "clean", [one.clean for one in here]),
                ("s-", INK, "under attack", [one.adversarial for one in here]),
                ("o:", FAINT, "clean, paper", [one.paper for one in here]),
                ("s:", FAINT, "under attack, paper", [one.paper_adversarial for one in here]),
            ):
                known = [(one.x, value) for one, value in zip(here, values, strict=True) if value is not None]
                if known:
                    axes.plot(*zip(*known, strict=True), style, color=colour, label=label, markersize=3)
            axes.set(xlabel=what, title=name, ylim=(0, 102))
            if axes.lines:
                axes.legend(fontsize=6)
        figure.axes[0].set_ylabel("accuracy in percent")
