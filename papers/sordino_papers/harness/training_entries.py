"""Entries of a table that train on part of a standard dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from sordino.errors import UsageError
from sordino.kernel.sampling import Sampler
from sordino_papers.harness.entry import Entry, Measurement
from sordino_papers.harness.rows import ExperimentRows, network_rows
from sordino_papers.harness.training import ADJACENCY, DpSgdTrial, forget, unfinished


class RowSource(Protocol):
    """Rows for a trial: a dataclass that a key can hold."""

    @property
    def data(self) -> str: ...

    def rows(self, trial: DpSgdTrial) -> ExperimentRows: ...


@dataclass(frozen=True)
class SetPart:
    """A standard dataset, or its first `examples` rows.

    With `left_out`, the last private rows are not trained on and replace the test rows.
    """

    kind: ClassVar[str] = "standard-set"
    set_name: str
    examples: int | None = None
    left_out: int = 0

    @property
    def data(self) -> str:
        return f"{self.set_name}, left-out rows" if self.left_out else self.set_name

    @property
    def size(self) -> int:
        """Number of private rows, if `examples` gives it."""
        if self.examples is None:
            raise UsageError(
                f"the size of a part of {self.set_name} is not known, because examples is None: set examples."
            )
        return self.examples

    def rows(self, trial: DpSgdTrial) -> ExperimentRows:
        return network_rows(self.set_name, trial.network, examples=self.examples, left_out=self.left_out)


def training_entry(
    method: str,
    part: RowSource,
    trial: DpSgdTrial,
    epsilon: float,
    *,
    sampler: Sampler | None = None,
    paper: float | None = None,
    chosen: str = "",
) -> Entry:
    """An entry that trains to `epsilon`, with Poisson sampling unless a sampler is given. It can be resumed.

    >>> trial = DpSgdTrial("dp-cnn-s", batch_size=500, epochs=2, learning_rate=1.0, clip=1.0, momentum=0.0)
    >>> training_entry("DP-CNN/S", SetPart("fashion-mnist", 10_000), trial, epsilon=3.0).name
    'DP-CNN/S, fashion-mnist, epsilon 3'
    """
    settings = {"training": trial, "rows": part} | ({} if sampler is None else {"sampler": sampler})

    def folder(seed: int) -> Path:
        return unfinished(part, trial, sampler, epsilon, seed)

    def measure(seed: int) -> Measurement:
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
