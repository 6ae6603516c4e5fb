"""The table of an experiment as a page of Markdown, with what goes with it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from sordino.accounting.guarantee import rounded_up
from sordino_papers.harness.scale import Scale
from sordino_papers.harness.side import Side
from sordino_papers.harness.table import Row

NOT_COMPARABLE = "quick: not comparable with the paper"
QUICK = (
    "Scale quick: few rows and few steps, to check that everything runs. These numbers are not comparable with the\n"
    "paper's, and say nothing about whether its results can be reproduced."
)
HEAD = ("method", "data", "epsilon", "adjacency", "zero-out", "paper", "ours", "seeds", "seconds")


def line(row: Row, scale: Scale) -> tuple[str, ...]:
    """A row in words: epsilon under the adjacency of the table, and what the same run is worth under zero-out.

    At the scale `quick` every row says that it is not comparable, in place of the paper's number.
    """
    smaller = row.more.get("epsilon_zero_out")
    return (
        row.method,
        row.data,
        "none" if row.epsilon is None else f"{row.epsilon:g}",
        row.adjacency or "-",
        "-" if smaller is None else rounded_up(smaller, 3),
        NOT_COMPARABLE if scale is Scale.QUICK else "-" if row.paper is None else f"{row.paper:.1f}",
        row.shown,
        str(row.seeds),
        "-" if row.seconds is None else f"{row.seconds:.0f}",
    )


def page(
    title: str, about: str, command: str, rows: Sequence[Row], sides: Sequence[Side], folder: Path, scale: Scale
) -> str:
    """Markdown: the table, how its settings were chosen, and each side with its pictures."""
    parts = [f"# {title}", *([QUICK] if scale is Scale.QUICK else []), f"`{command}`", about]
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
