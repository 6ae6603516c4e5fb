"""From runs to the rows of a table: means of seeds, their standard error, the paper's number beside them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sordino_papers.harness.entry import Entry
from sordino_papers.harness.ledger import Ledger

_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Row:
    """`ours` is the mean over seeds and `sem` its standard error; both are None where nothing was run."""

    method: str
    data: str
    epsilon: float | None
    adjacency: str | None
    paper: float | None
    ours: float | None
    sem: float | None
    seeds: int
    seconds: float | None
    chosen: str
    settings: dict[str, Any]
    more: dict[str, Any]

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def shown(self) -> str:
        """The mean and 1.96 standard errors."""
        if self.ours is None:
            return "-"
        return f"{self.ours:.1f}" if self.sem is None else f"{self.ours:.1f} ± {_NORMAL_95 * self.sem:.1f}"


def rows(entries: Iterable[Entry], ledger: Ledger, *, seeds: int) -> list[Row]:
    """One row per entry, from the first `seeds` seeds."""
    return [_row(entry, [run for run in ledger.of(entry) if run["seed"] < seeds]) for entry in entries]


def _row(entry: Entry, runs: Sequence[dict[str, Any]]) -> Row:
    values = [run["value"] for run in runs]
    return Row(
        method=entry.method,
        data=entry.data,
        epsilon=entry.epsilon,
        adjacency=entry.adjacency,
        paper=entry.paper,
        ours=statistics.mean(values) if values else None,
        sem=statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
        seeds=len(values),
        seconds=statistics.mean(run["seconds"] for run in runs) if runs else None,
        chosen=entry.chosen,
        settings=entry.key["settings"],
        more=runs[-1]["more"] if runs else {},
    )
