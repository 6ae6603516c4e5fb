"""A trial on a part of a standard set, as a line of a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sordino.kernel.sampling import Sampler
from sordino_papers.harness.entry import Entry, Measured
from sordino_papers.harness.rows import Rows, network_rows
from sordino_papers.harness.training import ADJACENCY, Trial, forget, unfinished


class Taken(Protocol):
    """Rows that a trial is given. Its `repr` tells them from others."""

    @property
    def data(self) -> str: ...

    def rows(self, trial: Trial) -> Rows: ...

    def settings(self, trial: Trial) -> dict[str, object]: ...


@dataclass(frozen=True)
class AllBut:
    """A standard set but for its last `left_out` rows, which are then measured on; or `examples` rows, to be quick."""

    set_name: str
    left_out: int = 0
    examples: int | None = None

    @property
    def data(self) -> str:
        return f"{self.set_name}, left-out rows" if self.left_out else self.set_name

    def rows(self, trial: Trial) -> Rows:
        return network_rows(self.set_name, trial.network, examples=self.examples, left_out=self.left_out)

    def settings(self, trial: Trial) -> dict[str, object]:
        return {"training": repr(trial), "examples": self.examples, "left_out": self.left_out}


@dataclass(frozen=True)
class Part:
    """The first `examples` rows of a standard set."""

    data: str
    examples: int

    def rows(self, trial: Trial) -> Rows:
        return network_rows(self.data, trial.network, examples=self.examples)

    def settings(self, trial: Trial) -> dict[str, object]:
        return {"training": repr(trial), "examples": self.examples}


def trained(
    method: str,
    part: Taken,
    trial: Trial,
    epsilon: float,
    *,
    sampler: Sampler | None = None,
    paper: float | None = None,
    chosen: str = "",
) -> Entry:
    """Trains to `epsilon`, on Poisson batches unless a sampler is given. A training that is stopped goes on.

    >>> trial = Trial("dp-cnn-s", batch_size=500, epochs=2, learning_rate=1.0, clip=1.0, momentum=0.0)
    >>> trained("DP-CNN/S", Part("fashion-mnist", 10_000), trial, epsilon=3.0).name
    'DP-CNN/S, fashion-mnist, epsilon 3'
    """
    settings = part.settings(trial) | ({} if sampler is None else {"sampler": repr(sampler)})

    def folder(seed: int) -> Path:
        return unfinished(part, trial, sampler, epsilon, seed)

    def measure(seed: int) -> Measured:
        return trial.to_epsilon(part.rows(trial), epsilon, seed, folder(seed), sampler)

    return Entry(
        method,
        part.data,
        epsilon,
        str(ADJACENCY),
        settings,
        measure,
        paper,
        chosen,
        forget=lambda seed: forget(folder(seed)),
    )
