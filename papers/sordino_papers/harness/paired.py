"""The difference between two entries, seed by seed: what they share cancels, and its interval says what is left."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from scipy.stats import t as student

from sordino_papers.harness.entry import Entry
from sordino_papers.harness.ledger import Ledger

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Gain:
    """How much higher the second entry is than the first, on average over seeds that both were run with.

    `half_width` is that of Student's 95 % interval of the mean, None with fewer than two seeds.
    """

    first: Entry
    second: Entry
    mean: float | None
    half_width: float | None
    seeds: int

    @property
    def shown(self) -> str:
        """
        >>> from sordino_papers.harness.entry import Measured
        >>> entry = Entry("linear", "digits", 1.0, "zero-out", {}, lambda seed: Measured(0.0))
        >>> Gain(entry, entry, mean=0.51, half_width=0.2, seeds=5).shown
        '+0.5 ± 0.2'
        """
        if self.mean is None:
            return "-"
        return f"{self.mean:+.1f}" if self.half_width is None else f"{self.mean:+.1f} ± {self.half_width:.1f}"


def gain(first: Entry, second: Entry, ledger: Ledger, *, seeds: int) -> Gain:
    """Compares what was kept of two entries, from the first `seeds` seeds."""
    one, other = ({run["seed"]: run["value"] for run in ledger.of(entry)} for entry in (first, second))
    differences = [other[seed] - one[seed] for seed in range(seeds) if seed in one and seed in other]
    if not differences:
        return Gain(first, second, None, None, 0)
    count, mean = len(differences), statistics.mean(differences)
    if count == 1:
        return Gain(first, second, mean, None, count)
    quantile = float(student.ppf((1 + _CONFIDENCE) / 2, count - 1))
    return Gain(first, second, mean, quantile * statistics.stdev(differences) / math.sqrt(count), count)
