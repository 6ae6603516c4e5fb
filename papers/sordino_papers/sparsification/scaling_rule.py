"""Accuracy over a grid of clip norms and momenta: Zhu and Blaschko (2023), appendix H, figures 10 and 11.

The rule: for SGD the best cells of all rows and columns have the same C / (1 - mu), so that a line can be searched in
place of a grid. For Adam, C and mu can be selected one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from sordino_papers.harness.entry import Entry, RunScale, SideTable
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.harness.training_entries import SetPart, training_entry
from sordino_papers.sparsification.grid import ClipMomentumGrid, GridCell, grid_side

CONSTANT = 1.0  # C / (1 - mu) of earlier work, whose clip is 0.1 and whose momentum is 0.9


@dataclass(frozen=True)
class GridSearch:
    """A trial at an epsilon whose clip norm and momentum are varied. With SGD the grid has a diagonal."""

    title: str
    part: SetPart
    trial: DpSgdTrial
    epsilon: float
    clips: tuple[float, ...]
    momenta: tuple[float, ...]
    chosen: str

    def grid(self) -> ClipMomentumGrid:
        cells = (self._cell(clip, momentum) for clip in self.clips for momentum in self.momenta)
        return ClipMomentumGrid(f"{self.title}, epsilon {self.epsilon:g}", self.clips, self.momenta, tuple(cells))

    def _cell(self, clip: float, momentum: float) -> GridCell:
        trial = replace(self.trial, clip=clip, momentum=momentum)
        method = f"{self.title}, C {clip:g}, mu {momentum:g}"
        entry = training_entry(method, self.part, trial, self.epsilon, chosen=self.chosen)
        return GridCell(clip, momentum, entry, trial.optimizer == "sgd" and follows(clip, momentum))


def follows(clip: float, momentum: float) -> bool:
    """Whether C / (1 - mu) is the constant of earlier work.

    >>> follows(0.5, 0.5), follows(0.5, 0.9)
    (True, False)
    """
    return abs(clip - CONSTANT * (1 - momentum)) < 1e-9


_CLIPS, _MOMENTA = (0.1, 0.2, 0.5, 1.0), (0.9, 0.8, 0.5, 0.0)
# Adam does not see how long its gradients are: while a clip shortens all of them, its size means nothing.
_ADAM_CLIPS = (0.1, 1.0, 3.0, 10.0)
_CNN = DpSgdTrial("dp-cnn", batch_size=1000, epochs=40, learning_rate=1.0, clip=0.1, momentum=0.9)
_SCATTERING = replace(_CNN, network="h-cnn", batch_size=8192, epochs=60, learning_rate=4.0)
_SMALL = replace(_CNN, network="dp-cnn-s", batch_size=500, epochs=10)
_TINY = replace(_SMALL, batch_size=200, epochs=2)
_BY_HAND = (
    "by hand, once, before any accuracy was seen: those of earlier work (C 0.1, mu 0.9), with a smaller network, fewer "
    "rows and epochs. Adam has the step of 0.001 that it is published with, and larger clips, because those of SGD "
    "made no difference to it in a quick run."
)
_PUBLISHED = "those of earlier work (C 0.1, mu 0.9). Adam has the step of 0.001 that it is published with."


def _with_adam(sgd: GridSearch, clips: tuple[float, ...]) -> GridSearch:
    trial = replace(sgd.trial, optimizer="adam", learning_rate=1e-3)
    return replace(sgd, title=f"{sgd.title}, Adam", trial=trial, clips=clips)


_QUICK = GridSearch("DP-CNN/S", SetPart("fashion-mnist", 1_000), _TINY, 3.0, (0.1, 1.0), (0.9, 0.0), _BY_HAND)
_CPU = GridSearch("DP-CNN/S", SetPart("fashion-mnist", 10_000), _SMALL, 3.0, _CLIPS, _MOMENTA, _BY_HAND)
_PAPER = GridSearch("DP-CNN", SetPart("cifar10", 50_000), _CNN, 3.0, _CLIPS, _MOMENTA, _PUBLISHED)
_PAPER_ADAM = _with_adam(_PAPER, _ADAM_CLIPS)
SEARCHED: dict[RunScale, tuple[GridSearch, ...]] = {
    RunScale.QUICK: (_QUICK, _with_adam(_QUICK, (1.0, 10.0))),
    RunScale.CPU: (_CPU, _with_adam(_CPU, _ADAM_CLIPS)),
    RunScale.PAPER: (
        _PAPER,
        replace(_PAPER, epsilon=7.53),
        replace(_PAPER, title="H-CNN", trial=_SCATTERING),
        _PAPER_ADAM,
        replace(_PAPER_ADAM, epsilon=7.53),
    ),
}


@dataclass(frozen=True)
class ScalingRule:
    """The experiment `scaling-rule`."""

    name: str = "scaling-rule"
    about: str = (
        "Test accuracy in percent by clip C and momentum mu, delta 1e-5, zero-out, Poisson batches. Paper: Zhu and\n"
        "Blaschko (2023), figures 10 and 11, pictures only, without its transfer learning."
    )

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        return tuple(cell.entry for grid in grids(scale) for cell in grid.cells)

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        return ()

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        command = f"sordino reproduce {self.name} --scale {scale} --seeds {seeds}"
        return (grid_side(grids(scale), scale, seeds, folder, command),)


SCALING_RULE = ScalingRule()


@lru_cache
def grids(scale: RunScale) -> tuple[ClipMomentumGrid, ...]:
    return tuple(searched.grid() for searched in SEARCHED[scale])
