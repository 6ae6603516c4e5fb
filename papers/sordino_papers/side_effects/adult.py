"""Accuracy on Adult by sex and race, with and without privacy. No paper has these numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from sordino.data import load
from sordino.data.columns import Category
from sordino.data.standard import adult_schema
from sordino.effects.groups import Group, by_columns
from sordino.errors import DataError
from sordino.report.markup import ACCENT, DASHES, FAINT
from sordino.training.evaluation import correctness, evaluating
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers
from sordino_papers.harness.rows import ExperimentRows
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.harness.training_entries import SetPart, training_entry
from sordino_papers.side_effects.trials import not_private

EPSILONS = (3.0, 1.0, 0.3)
GROUPS, ROWS = "groups", "rows of groups"  # the names of accuracies in percent, beside that of all, and of counts
_CHOSEN = "batch size and clip are those of the other tables of this family; the rest is by hand, without a search."


@dataclass(frozen=True)
class AdultGroupAccuracy:
    """Accuracy on each group of the test rows of Adult."""

    kind: ClassVar[str] = "groups"

    def measure(self, model: nn.Module, rows: ExperimentRows, seed: int) -> dict[str, dict[str, float]]:
        return by_group(model, rows)


MLP = DpSgdTrial(
    "mlp", batch_size=256, epochs=10.0, learning_rate=0.25, clip=0.1, momentum=0.9, measurement=AdultGroupAccuracy()
)


@dataclass(frozen=True)
class AdultTable:
    """The experiment `adult`."""

    name: str = "adult"
    about: str = (
        "Test accuracy in percent on Adult of a network with two hidden layers, without privacy and at three\n"
        "epsilons, delta 1e-5, zero-out. Accuracies by sex and race are below. No paper."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        part, trial = SetPart("adult"), MLP
        if scale is RunScale.QUICK:
            part, trial = replace(part, examples=3_000), replace(MLP, batch_size=100, epochs=10.0)
        private = (training_entry("MLP", part, trial, epsilon, chosen=_CHOSEN) for epsilon in EPSILONS)
        return (not_private("MLP, no privacy", part, trial), *private)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        return (lost_by_group(self.entries(scale), folder, scale, seeds, command),)


ADULT = AdultTable()


@lru_cache(maxsize=1)
def groups() -> tuple[Group, ...]:
    """Groups of the test rows, which are declared public: two sexes and five races."""
    test, schema = load("adult").test, adult_schema()
    if test is None:
        raise DataError("adult has no public rows, which a table of accuracies needs.")
    columns = {name: schema.columns[name] for name in schema.groups}
    names = {name: column.categories for name, column in columns.items() if isinstance(column, Category)}
    return tuple(group for column in names for group in by_columns(test, names, [column]).groups)


def by_group(model: nn.Module, rows: ExperimentRows) -> dict[str, dict[str, float]]:
    """Accuracy in percent on each group of the measured rows, and the number of rows in it."""
    records = rows.test.records
    batch = records.gather(torch.arange(records.num_units))
    with evaluating(model), torch.no_grad():
        right = correctness(model(batch.inputs[0]), batch.target).numpy()
    here = {f"{group.by}: {group.name}": group.rows[group.rows < len(right)] for group in groups()}
    found = {name: members for name, members in here.items() if len(members)}
    accuracies = {name: 100 * float(right[members].mean()) for name, members in found.items()}
    return {GROUPS: accuracies, ROWS: {name: len(members) for name, members in found.items()}}


def lost_by_group(entries: Sequence[Entry], folder: Path, scale: RunScale, seeds: int, command: str) -> SideTable:
    """Accuracy of each group without privacy, and its change at each epsilon, as means over seeds."""
    results, path = ResultsFile(folder / "runs.jsonl"), folder / f"groups-{scale}"
    runs = [[run for run in results.of(entry) if run["seed"] < seeds] for entry in entries]
    counts = runs[0][0]["more"][ROWS] if runs[0] else {}
    names = list(counts)
    means = {name: [_mean(name, of_entry) for of_entry in runs] for name in names}
    titles = [f"epsilon {entry.epsilon:g}" for entry in entries[1:]]
    numbers, picture = path.with_suffix(".json"), path.with_suffix(".svg")
    write_numbers(numbers, {"entries": ["no privacy", *titles], GROUPS: means, ROWS: counts}, command)
    with drawing(picture, width=4.4, height=0.8 + 0.3 * len(names)) as figure:
        axes = figure.subplots()
        for place, (title, marker) in enumerate(zip(titles, ("o", "s", "^"), strict=True), start=1):
            lost = [(found[place], found[0]) for found in means.values()]
            shown = [(name, x - y) for name, (x, y) in zip(names, lost, strict=True) if x is not None and y is not None]
            axes.plot(
                [x for _, x in shown], [name for name, _ in shown], marker, color=ACCENT, alpha=1 / place, label=title
            )
        axes.axvline(0.0, color=FAINT, linestyle=DASHES[1])
        axes.invert_yaxis()
        axes.set_xlabel("points of accuracy against no privacy")
        axes.legend(fontsize=6)
    lines = [(name, str(counts[name]), *_line(found)) for name, found in means.items()]
    title = "Accuracy of each group without privacy, and what privacy changes, in points:"
    return SideTable(title, (("group", "test rows", "no privacy", *titles), *lines), (picture, numbers))


def _mean(name: str, runs: Sequence[dict[str, dict[str, dict[str, float]]]]) -> float | None:
    return statistics.mean(run["more"][GROUPS][name] for run in runs) if runs else None


def _line(found: Sequence[float | None]) -> tuple[str, ...]:
    plain, *private = found
    if plain is None:
        return ("-",) * len(found)
    return f"{plain:.1f}", *("-" if x is None else f"{x - plain:+.1f}" for x in private)
