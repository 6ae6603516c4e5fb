"""Runs the entries of an experiment that have no results yet, and saves each result as soon as it is measured."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sordino._input import validate
from sordino._input.files import write_atomically
from sordino.errors import DataError, UsageError
from sordino_papers.harness.entry import Entry, Experiment, HasExtraEntries, HasMeasuredSides, RunScale, SideTable
from sordino_papers.harness.page import page
from sordino_papers.harness.results_file import ResultsFile, origin, write_numbers
from sordino_papers.harness.table import Row, rows


@dataclass(frozen=True)
class Reproduction:
    """Rows of a table, and its side tables."""

    rows: tuple[Row, ...]
    sides: tuple[SideTable, ...]


def reproduce(
    experiment: Experiment,
    folder: Path,
    *,
    scale: RunScale,
    seeds: int,
    ablate: bool = False,
    only: str = "",
    train: bool = True,
    progress: bool = True,
) -> Reproduction:
    """Makes the table of an experiment. Runs that the folder has are read, missing ones are run.

    All entries are run with seed 0 first, then with seed 1, so that an interrupted run leaves a whole table. With
    `only`, just the entries whose name contains this text are run; the table shows all. Without `train` nothing is run
    or measured. Extra entries are run after the whole table.
    """
    validate.count(seeds=seeds)
    entries = [*experiment.entries(scale), *(experiment.ablation(scale) if ablate else ())]
    wanted = [entry for entry in entries if only in entry.name]
    if not wanted:
        raise UsageError(f"only must be a part of an entry's name, as in {entries[0].name!r}, got {only!r:.80}.")
    _make(folder)
    results = ResultsFile(folder / "runs.jsonl")
    command = f"sordino reproduce {experiment.name} --scale {scale} --seeds {seeds}" + (" --ablate" if ablate else "")
    command += f" --only {shlex.quote(only)}" if only else ""
    if train:
        _run(wanted, results, seeds, command, progress)
        if isinstance(experiment, HasExtraEntries) and not only:
            _run(experiment.extra_entries(scale), ResultsFile.of_extra_entries(folder), 1, command, progress)
        if isinstance(experiment, HasMeasuredSides):
            experiment.measure_sides(scale, seeds, folder)
    sides = tuple(experiment.sides(scale, seeds, folder))
    found = rows(entries, results, seeds=seeds)
    write_numbers(folder / f"table-{scale}.json", {"rows": [row.json() for row in found]}, command)
    text = page(experiment.name, experiment.about, command, found, sides, folder, scale)
    write_atomically(folder / f"table-{scale}.md", text.encode())
    return Reproduction(tuple(found), sides)


def _make(folder: Path) -> None:
    """Creates the folder, and checks that it can be written before any training starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written: {error.strerror}.") from None


def _run(entries: Sequence[Entry], results: ResultsFile, seeds: int, command: str, progress: bool) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("", total=seeds * len(entries))
        for seed in range(seeds):
            for entry in entries:
                bar.update(task, description=f"{entry.name}, seed {seed}")
                measure_once(entry, results, seed=seed, command=command)
                bar.advance(task)


def measure_once(entry: Entry, results: ResultsFile, *, seed: int, command: str) -> None:
    """Measures an entry with a seed, unless the results file has it already. `command` is recorded with the run.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sordino_papers.harness.entry import Measurement
    >>> results = ResultsFile(Path(tempfile.mkdtemp()) / "runs.jsonl")
    >>> entry = Entry("linear", "digits", 1.0, "zero-out", {}, lambda seed: print("measuring") or Measurement(90.0))
    >>> for _ in range(2):
    ...     measure_once(entry, results, seed=0, command="sordino reproduce")
    measuring
    """
    if results.has(entry, seed=seed):
        return
    begun = time.monotonic()
    measured = entry.measure(seed)
    results.add(entry, seed=seed, measured=measured, seconds=time.monotonic() - begun, origin=origin(command))
    entry.forget(seed)
