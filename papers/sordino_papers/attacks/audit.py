"""Lower bounds on epsilon by audits, compared with the proved epsilon."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from sordino.attacks.audit.lower_bounds import METHODS
from sordino.recipes import Recipe
from sordino.report.markup import INK
from sordino_papers.attacks.audit_targets import (
    AT_FIXED,
    DELTA,
    AuditTarget,
    LastIterateAudit,
    MechanismAudit,
    RecipeAudit,
)
from sordino_papers.attacks.which_tool import MUTANT_TABLE
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import ResultsFile, write_numbers

EPSILONS = (1.0, 2.0, 4.0, 8.0)
_COLUMNS = (*METHODS, f"one-run {AT_FIXED}", f"f-dp {AT_FIXED}")
_MARKS = ("o", "s", "^", "v", ".", ",")
_CHOSEN = (
    "the training's by hand, before an audit of it was seen. Which shares of canaries may be guessed at was chosen on "
    "simulations of the exact mechanism."
)
_CHOSEN_BY_BOUND = (
    "batches, steps, canaries and how they are scored are those of about a dozen that showed most at epsilon 8. Each "
    "bound holds by itself; what a first try would have shown is mostly 0."
)


@dataclass(frozen=True)
class AuditTable:
    """The experiment `audit`."""

    name: str = "audit"
    about: str = (
        "Lower bounds on epsilon by the one-run method (Steinke, Nasr and Jagielski 2023), which assumes nothing,\n"
        "against the epsilon that is proved: delta 1e-5, confidence 95 %, zero-out, shares of guesses chosen on half\n"
        "of the canaries. Not refuted is what a bound below epsilon says, and no more."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entry(name, each, epsilon) for name, each, at in _audited(scale) for epsilon in at)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        folder.mkdir(parents=True, exist_ok=True)
        return _by_method(self.entries(scale), scale, seeds, folder, command), MUTANT_TABLE.side(scale, folder)

    def measure_sides(self, scale: RunScale, seeds: int, folder: Path) -> None:
        """Plants each known bug and runs the checks, unless this was done with the same settings."""
        MUTANT_TABLE.measure(scale, folder, f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}")


AUDIT = AuditTable()


def _audited(scale: RunScale) -> tuple[tuple[str, AuditTarget, tuple[float, ...]], ...]:
    """Audit targets of a scale, with the epsilons that each is audited at."""
    small = Recipe("digits", "linear", EPSILONS[0], DELTA, batch_size=144, steps=40)
    full_batch = small.changed(batch_size=1437, steps=20, learning_rate=0.5, clip=1.0, momentum=0.0)
    few = partial(RecipeAudit, full_batch, 50, "black")
    if scale is RunScale.QUICK:
        return (
            ("exact mechanism", MechanismAudit(canaries=300, runs=2), EPSILONS),
            ("white box, linear", RecipeAudit(small, 300), EPSILONS),
            ("black box, linear, worst-case start", few(worst_start=True, repeats=3), (8.0,)),
            ("last iterate, NoisyCGD", LastIterateAudit(300), EPSILONS),
        )
    canaries = 1000 if scale is RunScale.CPU else 5000
    target = Recipe("mnist", "dp-cnn-s", EPSILONS[0], DELTA)
    whole = target.changed(batch_size=2048, epochs=40, clip=0.1, momentum=0.9, averaging="none")
    network = whole.changed(batch_size=3000, steps=100) if scale is RunScale.CPU else whole
    large_batch = RecipeAudit(whole.changed(batch_size=6000, steps=30), 100, "black", worst_start=True, repeats=5)
    return (
        ("exact mechanism", MechanismAudit(canaries, runs=20), EPSILONS),
        ("white box, DP-CNN/S", RecipeAudit(network, canaries), EPSILONS),
        ("black box, linear", few(repeats=20), (8.0,)),
        ("black box, linear, worst-case start", few(worst_start=True, repeats=20), EPSILONS),
        ("black box, DP-CNN/S, worst-case start", large_batch, (8.0,)),
        ("last iterate, NoisyCGD", LastIterateAudit(canaries), EPSILONS),
    )


def _entry(name: str, audited: AuditTarget, epsilon: float) -> Entry:
    settings, measure = {"target": audited.settings()}, partial(audited.measure, epsilon)
    chosen = _CHOSEN_BY_BOUND if name.startswith("black box") else _CHOSEN
    return Entry(name, audited.data, epsilon, "zero-out", settings, measure, None, chosen)


@dataclass(frozen=True)
class _Point:
    """Bounds of one method at one epsilon: mean and standard error over seeds, and how many exceeded the proved
    epsilon.
    """

    attack: str
    theory: float
    method: str
    mean: float
    sem: float | None
    seeds: int
    above_theory: int

    @property
    def shown(self) -> str:
        refuted = f" ({self.above_theory} above)" if self.above_theory else ""
        return f"{self.mean:.2f}" + ("" if self.sem is None else f" ± {1.96 * self.sem:.2f}") + refuted


def _by_method(entries: Sequence[Entry], scale: RunScale, seeds: int, folder: Path, command: str) -> SideTable:
    """Lower bounds by method, from the runs that were kept."""
    results, picture = ResultsFile(folder / "runs.jsonl"), folder / f"bounds-{scale}.svg"
    numbers = folder / f"bounds-{scale}.json"
    found = [point for entry in entries for point in _points(entry, results, seeds)]
    write_numbers(numbers, {"points": [asdict(point) for point in found]}, command)
    _draw(found, picture)
    lines = {(point.attack, point.theory): ["-"] * len(_COLUMNS) for point in found}
    for point in found:
        lines[point.attack, point.theory][_COLUMNS.index(point.method)] = point.shown
    head = ("attack", "epsilon", *_COLUMNS)
    title = "Lower bounds by every method (f-dp and gaussian assume a Gaussian trade-off), means with 1.96 errors:"
    body = ((attack, f"{theory:g}", *cells) for (attack, theory), cells in lines.items())
    return SideTable(title, (head, *body), (picture, numbers))


def _points(entry: Entry, results: ResultsFile, seeds: int) -> list[_Point]:
    runs = [run["more"] for run in results.of(entry) if run["seed"] < seeds]
    found = []
    for method in _COLUMNS:
        values = [run[method] for run in runs if method in run]
        if values and entry.epsilon is not None:
            sem = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
            above = sum(run[method] > run["theory"] for run in runs if method in run)
            mean = statistics.mean(values)
            found.append(_Point(entry.method, entry.epsilon, method, mean, sem, len(values), above))
    return found


def _draw(found: Sequence[_Point], path: Path) -> None:
    names = list(dict.fromkeys(point.attack for point in found)) or ["nothing was run"]
    most = max(EPSILONS)
    with drawing(path, width=2.5 * len(names), height=2.6) as figure:
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            axes.plot((0, most), (0, most), color=INK, linewidth=1.4, label="theory")
            for method, mark in zip(METHODS, _MARKS, strict=False):
                here = [point for point in found if (point.attack, point.method) == (name, method)]
                if here:
                    axes.plot([p.theory for p in here], [p.mean for p in here], f"{mark}-", markersize=3, label=method)
            axes.set(title=name, xlabel="epsilon proved", xlim=(0, 1.05 * most), ylim=(0, 1.05 * most))
            axes.title.set_fontsize(7)
        figure.axes[0].set_ylabel("epsilon shown by attack, at least")
        figure.axes[0].legend(fontsize=6)
