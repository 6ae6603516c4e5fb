"""Rows of a table: means over seeds with standard errors, and differences that are paired by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import t as student

from sordino_papers.harness.entry import Entry
from sordino_papers.harness.results_file import ResultsFile

_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Row:
    """One row. `ours` is the mean over seeds and `sem` its standard error; both are None if nothing was run."""

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
        """The mean and 1.96 standard errors, as text."""
        if self.ours is None:
            return "-"
        return f"{self.ours:.1f}" if self.sem is None else f"{self.ours:.1f} ± {_NORMAL_95 * self.sem:.1f}"


def rows(entries: Iterable[Entry], results: ResultsFile, *, seeds: int) -> list[Row]:
    """One row per entry, from the first `seeds` seeds."""
    return [_row(entry, [run for run in results.of(entry) if run["seed"] < seeds]) for entry in entries]


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


_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Gain:
    """Mean difference between two entries, over the seeds that both were run with.

    `half_width` is half of Student's 95 % confidence interval, None with fewer than two seeds.
    """

    first: Entry
    second: Entry
    mean: float | None
    half_width: float | None
    seeds: int

    @property
    def shown(self) -> str:
        """
        >>> from sordino_papers.harness.entry import Measurement
        >>> entry = Entry("linear", "digits", 1.0, "zero-out", {}, lambda seed: Measurement(0.0))
        >>> Gain(entry, entry, mean=0.51, half_width=0.2, seeds=5).shown
        '+0.5 ± 0.2'
        """
        if self.mean is None:
            return "-"
        return f"{self.mean:+.1f}" if self.half_width is None else f"{self.mean:+.1f} ± {self.half_width:.1f}"


def gain(first: Entry, second: Entry, results: ResultsFile, *, seeds: int) -> Gain:
    """Computes the gain of the second entry over the first, from the first `seeds` seeds."""
    one, other = ({run["seed"]: run["value"] for run in results.of(entry)} for entry in (first, second))
    differences = [other[seed] - one[seed] for seed in range(seeds) if seed in one and seed in other]
    if not differences:
        return Gain(first, second, None, None, 0)
    count, mean = len(differences), statistics.mean(differences)
    if count == 1:
        return Gain(first, second, mean, None, count)
    quantile = float(student.ppf((1 + _CONFIDENCE) / 2, count - 1))
    return Gain(first, second, mean, quantile * statistics.stdev(differences) / math.sqrt(count), count)
