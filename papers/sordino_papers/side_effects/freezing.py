"""Accuracy on MNIST with and without freezing in stages (Xu and Chen 2026, appendix G)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sordino.encodings import Neurons
from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.page import gains_table
from sordino_papers.harness.training import DpSgdTrial, FreezingStages, Sparsity
from sordino_papers.harness.training_entries import training_entry
from sordino_papers.side_effects.image_sets import ImageSet
from sordino_papers.side_effects.padding import sized
from sordino_papers.side_effects.trials import EPSILON, LENET

NONE, FROZEN = "none", "frozen"
_STAGES = FreezingStages(3, 0.77)
WAYS = {NONE: LENET, FROZEN: replace(LENET, freezing=_STAGES)}
PAPER = {NONE: 95.11, FROZEN: 96.71}
MORE_WAYS = {
    "frozen, one stage": replace(LENET, freezing=replace(_STAGES, count=1)),
    "frozen by neuron": replace(LENET, freezing=replace(_STAGES, together=Neurons())),
    "frozen at zero": replace(LENET, freezing=replace(_STAGES, prune=True)),
    "sparsified": replace(LENET, sparsity=Sparsity(0.77)),
    "frozen and sparsified": replace(LENET, freezing=_STAGES, sparsity=Sparsity(0.5)),
}
_CHOSEN = (
    "those of the table of padding, where they were compared on left-out rows without freezing, for all lines alike. "
    "77 % and freezing by magnitude are the paper's; three stages that cut the steps into quarters are ours."
)


@dataclass(frozen=True)
class FreezingTable:
    """The experiment `freezing`."""

    name: str = "freezing"
    about: str = (
        "Test accuracy in percent of LeNet on MNIST with and without freezing 77 % of its weights, the smallest\n"
        "first, in stages, epsilon 3, delta 1e-5, zero-out. Paper: Xu and Chen (2026), appendix G, at an epsilon\n"
        "that is not known."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(_entry(way, trial, scale) for way, trial in WAYS.items())

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """Other freezing schedules, random sparsification instead, and both."""
        return tuple(_entry(way, trial, scale) for way, trial in MORE_WAYS.items())

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        none, *others = (*self.entries(scale), *self.ablation(scale))
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        return (gains_table([(none, other) for other in others], folder, scale, seeds, command, what="freezing"),)


FREEZING = FreezingTable()


def _entry(way: str, trial: DpSgdTrial, scale: RunScale) -> Entry:
    trial, pictures = sized(trial, ImageSet("mnist"), scale)
    paper = None if scale is RunScale.QUICK else PAPER.get(way)
    return training_entry(f"LeNet, {way}", pictures, trial, EPSILON, paper=paper, chosen=_CHOSEN)
