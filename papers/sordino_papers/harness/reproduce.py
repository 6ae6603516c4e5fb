"""Runs what an experiment still lacks, one training after the other, and keeps each as it ends."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sordino._input import validate
from sordino._input.files import write_atomically
from sordino.errors import DataError, UsageError
from sordino_papers.harness.entry import Entry, Experiment, MeasuresBeside, MeasuresSides
from sordino_papers.harness.ledger import Ledger
from sordino_papers.harness.once import measured_once
from sordino_papers.harness.origin import write_numbers
from sordino_papers.harness.page import page
from sordino_papers.harness.scale import Scale
from sordino_papers.harness.side import Side
from sordino_papers.harness.table import Row, rows


@dataclass(frozen=True)
class Reproduced:
    """The rows of a table, and what goes with them."""

    rows: tuple[Row, ...]
    sides: tuple[Side, ...]


def reproduce(
    experiment: Experiment,
    folder: Path,
    *,
    scale: Scale,
    seeds: int,
    ablate: bool = False,
    only: str = "",
    train: bool = True,
    progress: bool = True,
) -> Reproduced:
    """The table of an experiment. What the folder has of it already is read, the rest is run.

    All entries with seed 0 come first, then those with seed 1: a run that is stopped early has a whole table. With
    `only`, just the entries are run that have this text in their name; the table has all of them. Without `train`
    nothing is run or measured: the table is of what is there. What is measured beside it is run after a whole table.
    """
    validate.count(seeds=seeds)
    entries = [*experiment.entries(scale), *(experiment.ablation(scale) if ablate else ())]
    wanted = [entry for entry in entries if only in entry.name]
    if not wanted:
        raise UsageError(f"only must be a part of an entry's name, as in {entries[0].name!r}, got {only!r:.80}.")
    _make(folder)
    ledger = Ledger(folder / "runs.jsonl")
    command = f"sordino reproduce {experiment.name} --scale {scale} --seeds {seeds}" + (" --ablate" if ablate else "")
    command += f" --only {shlex.quote(only)}" if only else ""
    if train:
        _run(wanted, ledger, seeds, command, progress)
        if isinstance(experiment, MeasuresBeside) and not only:
            _run(experiment.beside(scale), Ledger.beside(folder), 1, command, progress)
        if isinstance(experiment, MeasuresSides):
            experiment.measure_sides(scale, seeds, folder)
    sides = tuple(experiment.sides(scale, seeds, folder))
    found = rows(entries, ledger, seeds=seeds)
    write_numbers(folder / f"table-{scale}.json", {"rows": [row.json() for row in found]}, command)
    text = page(experiment.name, experiment.about, command, found, sides, folder, scale)
    write_atomically(folder / f"table-{scale}.md", text.encode())
    return Reproduced(tuple(found), sides)


def _make(folder: Path) -> None:
    """Hours of training are not begun for a folder in which nothing can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be written: {error.strerror}.") from None


def _run(entries: Sequence[Entry], ledger: Ledger, seeds: int, command: str, progress: bool) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task("", total=seeds * len(entries))
        for seed in range(seeds):
            for entry in entries:
                bar.update(task, description=f"{entry.name}, seed {seed}")
                measured_once(entry, ledger, seed=seed, command=command)
                bar.advance(task)
