"""Tables as Markdown pages, and their figures as SVG files. Equal numbers give equal bytes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from sordino._input.files import write_atomically
from sordino.accounting.guarantee import rounded_up
from sordino.report.markup import ACCENT, FAINT
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.table import Gain, Row, gain

NOT_COMPARABLE = "quick: not comparable with the paper"
QUICK = (
    "Scale quick: few rows and few steps, to check that everything runs. These numbers are not comparable with the\n"
    "paper's, and say nothing about whether its results can be reproduced."
)
HEAD = ("method", "data", "epsilon", "adjacency", "zero-out", "paper", "ours", "seeds", "seconds")


def line(row: Row, scale: RunScale) -> tuple[str, ...]:
    """Formats a row: epsilon under the adjacency of the table, and the epsilon of the same run under zero-out.

    At scale `quick` every row says that it is not comparable, in place of the paper's number.
    """
    smaller = row.more.get("epsilon_zero_out")
    return (
        row.method,
        row.data,
        "none" if row.epsilon is None else f"{row.epsilon:g}",
        row.adjacency or "-",
        "-" if smaller is None else rounded_up(smaller, 3),
        NOT_COMPARABLE if scale is RunScale.QUICK else "-" if row.paper is None else f"{row.paper:.1f}",
        row.shown,
        str(row.seeds),
        "-" if row.seconds is None else f"{row.seconds:.0f}",
    )


def page(
    title: str, about: str, command: str, rows: Sequence[Row], sides: Sequence[SideTable], folder: Path, scale: RunScale
) -> str:
    """Formats the table, how its settings were selected, and the side tables with their figures as Markdown."""
    parts = [f"# {title}", *([QUICK] if scale is RunScale.QUICK else []), f"`{command}`", about]
    parts.append(_markdown([HEAD, *(line(row, scale) for row in rows)]))
    parts.append("Means of seeds with 1.96 standard errors, final iterates.")
    chosen = {row.chosen: row.data for row in rows if row.chosen}  # one sentence for each
    parts += [f"How settings were chosen, {data}: {how}" for how, data in chosen.items()]
    for side in sides:
        parts += [side.title, _markdown(side.lines)]
        parts += [f"![]({os.path.relpath(file, folder)})" for file in side.files if file.suffix == ".svg"]
    return "\n\n".join(parts) + "\n"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    return "\n".join([_row(head), "|" + "---|" * len(head), *(_row(cells) for cells in body)])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sordino",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
}


@contextmanager
def drawing(path: Path, *, width: float, height: float) -> Iterator[Figure]:
    """A figure of this size in inches, written to `path` when the block ends.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "line.svg"
    >>> with drawing(path, width=3, height=2) as figure:
    ...     lines = figure.subplots().plot([0, 1], [0, 1])
    >>> path.read_bytes()[:5]
    b'<?xml'
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        FigureCanvasSVG(figure)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


def gains_table(
    pairs: Sequence[tuple[Entry, Entry]],
    folder: Path,
    scale: RunScale,
    seeds: int,
    command: str,
    *,
    what: str = "sparsification",
) -> SideTable:
    """A line and an error bar for each pair of entries: how much the second gains over the first."""
    results = ResultsFile(folder / "runs.jsonl")
    found = [gain(one, other, results, seeds=seeds) for one, other in pairs]
    picture, numbers = folder / f"gains-{scale}.svg", folder / f"gains-{scale}.json"
    write_numbers(numbers, {"gains": [_plain(one) for one in found]}, command)
    _draw([one for one in found if one.mean is not None], picture)
    head = ("trained", "data", "epsilon", "paper", "ours", "seeds")
    title = f"What {what} gains, paired by seed, with Student's 95 % interval:"
    return SideTable(title, (head, *(_line(one, scale) for one in found)), (picture, numbers))


def _line(found: Gain, scale: RunScale) -> tuple[str, ...]:
    first, second = found.first, found.second
    printed = None if first.paper is None or second.paper is None else second.paper - first.paper
    return (
        second.method,
        second.data,
        f"{second.epsilon:g}",
        "-" if printed is None else NOT_COMPARABLE if scale is RunScale.QUICK else f"{printed:+.1f}",
        found.shown,
        str(found.seeds),
    )


def _plain(found: Gain) -> dict[str, object]:
    second = found.second
    return {
        "method": second.method,
        "data": second.data,
        "epsilon": second.epsilon,
        "mean": found.mean,
        "half_width": found.half_width,
        "seeds": found.seeds,
    }


def _draw(found: Sequence[Gain], path: Path) -> None:
    with drawing(path, width=5.0, height=0.8 + 0.28 * len(found)) as figure:
        axes = figure.subplots()
        names = [f"{one.second.method}, {one.second.data}, epsilon {one.second.epsilon:g}" for one in found]
        means, widths = [one.mean or 0.0 for one in found], [one.half_width or 0.0 for one in found]
        axes.errorbar(means, names, xerr=widths, fmt="o", color=ACCENT, capsize=3)
        axes.axvline(0.0, color=FAINT, linewidth=0.8)
        axes.invert_yaxis()
        axes.set_xlabel("gain in points of accuracy")
