"""Ranked and random sparsification: accuracy, and how often each coordinate is masked.

Zhu and Blaschko (2023), appendix I and figure 12: ranks of noisy gradients are nearly random, so both give the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sordino.report.markup import ACCENT, FAINT, INK
from sordino_papers.harness.entry import Entry, Measurement, RunScale, SideTable
from sordino_papers.harness.page import drawing
from sordino_papers.harness.results_file import write_numbers
from sordino_papers.harness.rows import network_rows
from sordino_papers.harness.training import ADJACENCY, DpSgdTrial, Sparsity
from sordino_papers.harness.training_entries import SetPart
from sordino_papers.sparsification.diagnostics import count_masks
from sordino_papers.sparsification.gradient_snapshots import ExposedTraining, kept_details, mark_not_private

NONE, RANDOM, RANKED = "none", "RS", "ranked"
MASKS = "mask counts"
CHOSEN = (
    "those of earlier work with the clip at 0.5 and a momentum that keeps C / (1 - mu), the same for all three. "
    "Nothing was searched here."
)


@dataclass(frozen=True)
class MaskComparison:
    """A training whose accuracies are compared, and a training whose masks are counted."""

    data: str
    trial: DpSgdTrial
    epsilons: tuple[float, ...]
    counted: ExposedTraining

    def trials(self) -> dict[str, DpSgdTrial]:
        """Three trainings by name, which differ in their masks only."""
        sparsity = self.trial.sparsity
        ranked = None if sparsity is None else replace(sparsity, ranked=True)
        return {
            NONE: replace(self.trial, sparsity=None),
            RANDOM: self.trial,
            RANKED: replace(self.trial, sparsity=ranked),
        }


_CLOTHES = DpSgdTrial("dp-cnn-s", 2048, 40, learning_rate=4.0, clip=0.5, momentum=0.5, sparsity=Sparsity(0.7))
_CLOTHES_COUNTED = DpSgdTrial(
    "dp-cnn-s", 1000, 100, learning_rate=2.0, clip=1.0, momentum=0.0, sparsity=Sparsity(0.9, ranked=True)
)
_PIXELS_COUNTED = DpSgdTrial(
    "dp-cnn", 1000, 100, learning_rate=1.0, clip=1.0, momentum=0.0, sparsity=Sparsity(0.9, ranked=True)
)
_DIGITS = DpSgdTrial("two-layer", 128, 4, learning_rate=1.0, clip=0.5, momentum=0.5, sparsity=Sparsity(0.7))
_DIGITS_COUNTED = DpSgdTrial(
    "two-layer", 128, 8, learning_rate=1.0, clip=1.0, momentum=0.0, sparsity=Sparsity(0.9, ranked=True)
)
COMPARED = {
    RunScale.QUICK: MaskComparison("digits", _DIGITS, (3.0,), ExposedTraining("digits", _DIGITS_COUNTED, 2.0)),
    RunScale.CPU: MaskComparison(
        "fashion-mnist", _CLOTHES, (3.0, 1.0), ExposedTraining("fashion-mnist", _CLOTHES_COUNTED, 1.6, examples=20_000)
    ),
    RunScale.PAPER: MaskComparison(
        "fashion-mnist", _CLOTHES, (3.0, 1.0), ExposedTraining("cifar10", _PIXELS_COUNTED, 1.6)
    ),
}


@dataclass(frozen=True)
class RankedTable:
    """The experiment `ranked`."""

    name: str = "ranked"
    about: str = (
        "Test accuracy in percent without sparsification, with random and with ranked, delta 1e-5, zero-out. Mask\n"
        "counts: how far ranked masks lie from what is expected of random ones, in percent of total variation; no\n"
        "epsilon, because raw gradients are ranked beside them. Paper: Zhu and Blaschko (2023), appendix I, figure 12."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        compared = COMPARED[scale]
        accuracies = [
            _accuracy(compared.data, method, trial, epsilon)
            for epsilon in compared.epsilons
            for method, trial in compared.trials().items()
        ]
        return (*accuracies, _counts(compared.counted))

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        found = kept_details(_counts(COMPARED[scale].counted), folder, seeds)
        if not found:
            return ()
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        picture, numbers = folder / f"mask-counts-{scale}.svg", folder / f"mask-counts-{scale}.json"
        write_numbers(numbers, {"seeds": len(found), "runs": found}, command)
        _draw(found[0], picture)
        head = ("ranking", "distance from random, %", "never masked, %", "masked in half of all or more, %")
        lines = [(name, *_summary(found[0], kind)) for kind, name in _KINDS.items()]
        title = f"How often coordinates are masked, seed 0, {COMPARED[scale].counted.data}:"
        return (SideTable(title, (head, *lines), (picture, numbers)),)


RANKED_TABLE = RankedTable()

_KINDS = {
    "ranked": "ranked",
    "random": "random",
    "expected": "random, expected",
    "noise_free": "ranked without noise, not private",
}


def _accuracy(data: str, method: str, trial: DpSgdTrial, epsilon: float) -> Entry:
    def measure(seed: int) -> Measurement:
        return trial.to_epsilon(network_rows(data, trial.network), epsilon, seed)

    return Entry(
        method, data, epsilon, str(ADJACENCY), {"training": trial, "rows": SetPart(data)}, measure, chosen=CHOSEN
    )


def _counts(watched: ExposedTraining) -> Entry:
    def measure(seed: int) -> Measurement:
        rows = watched.rows()
        found = count_masks(watched.run(rows, at=range(watched.trial.steps(len(rows))), seed=seed), seed=seed)
        more = asdict(found) | {"distance": {kind: found.distance(getattr(found, kind)) for kind in _KINDS}}
        return Measurement(100 * found.distance(found.ranked), more)

    return Entry(MASKS, watched.data, None, None, {"training": watched}, measure)


def _summary(found: dict[str, Any], kind: str) -> tuple[str, ...]:
    counts = found[kind]
    size, masks = sum(counts), len(counts) - 1
    often = sum(counts[-(-masks // 2) :])
    return (
        f"{100 * found['distance'][kind]:.1f}",
        f"{100 * counts[0] / size:.1f}",
        f"{100 * often / size:.1f}",
    )


def _draw(found: dict[str, Any], path: Path) -> None:
    looks: dict[str, dict[str, Any]] = {
        "expected": {"color": FAINT, "linewidth": 3.0},
        "random": {"color": INK, "linewidth": 1.0, "linestyle": ":"},
        "ranked": {"color": ACCENT, "linewidth": 1.2},
        "noise_free": {"color": ACCENT, "linewidth": 1.2, "linestyle": "--"},
    }
    with drawing(path, width=5.0, height=3.6) as figure:
        axes = figure.subplots()
        for kind, look in looks.items():
            axes.plot(range(len(found[kind])), found[kind], label=_KINDS[kind], drawstyle="steps-mid", **look)
        axes.set(xlabel="times masked", ylabel="coordinates")
        figure.legend(loc="outside upper left", ncols=2)
        mark_not_private(figure)
