"""Trainings with raw gradients exposed at chosen epochs. Not private: the noise is given, not calibrated."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sordino.kernel.sampling import steps_per_epoch
from sordino.report.markup import FAINT
from sordino.training.not_private import NOT_PRIVATE
from sordino_papers.harness.entry import Entry
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.rows import ExperimentRows, network_rows
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.sparsification.diagnostics import ExposedRun, ExposedStep


@dataclass(frozen=True)
class ExposedTraining:
    """Settings of such a training except the seed. `examples` None means all rows of `data`."""

    data: str
    trial: DpSgdTrial
    noise_multiplier: float
    examples: int | None = None

    def rows(self) -> ExperimentRows:
        return network_rows(self.data, self.trial.network, examples=self.examples)

    def run(self, rows: ExperimentRows, *, at: Collection[int], seed: int) -> ExposedRun:
        trial, model = self.trial, self.trial.build(rows.facts, seed)
        plan = trial.plan(trial.poisson(len(rows)), self.noise_multiplier, len(rows))
        optimizer = trial.optimizer_for(model.parameters())
        return ExposedRun(plan, model, rows.data, optimizer, divisor=trial.batch_size, at=at, seed=seed)


@dataclass(frozen=True)
class GradientSnapshots:
    """A training, the epochs whose first step is examined, and the number of units examined in it."""

    training: ExposedTraining
    epochs: tuple[int, ...]
    units: int

    def shown(self, seed: int) -> Iterator[tuple[int, ExposedStep]]:
        """Yields each of these epochs with its step. The training stops after the last one."""
        rows = self.training.rows()
        per_epoch = steps_per_epoch(len(rows), self.training.trial.batch_size)
        epochs = {per_epoch * epoch: epoch for epoch in self.epochs}
        for step in islice(self.training.run(rows, at=epochs.keys(), seed=seed), len(epochs)):
            yield epochs[step.step], step


def kept_details(entry: Entry, folder: Path, seeds: int) -> list[dict[str, Any]]:
    """The `more` values of the runs of an entry, by seed."""
    return [run["more"] for run in ResultsFile(folder / "runs.jsonl").of(entry) if run["seed"] < seeds]


def mark_not_private(figure: Figure) -> None:
    """Writes on a figure that its data is not private."""
    figure.supxlabel(NOT_PRIVATE, fontsize=7, color=FAINT)
