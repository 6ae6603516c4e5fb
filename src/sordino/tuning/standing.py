"""How far a search has come: all that the next trial depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from sordino.kernel.budget import RunIdentity
from sordino.tuning.candidates import Candidate
from sordino.tuning.task import Tried


@dataclass(frozen=True)
class Standing:
    """How far a tuning has come: trials `done` in a stage around `centre`, and the best of all so far.

    `scores` are for whoever may see every trial; with a random number of them nobody may.
    """

    centre: Candidate
    stage: int = 0
    done: int = 0
    best: Tried | None = None
    scores: tuple[tuple[Candidate, float], ...] = ()

    def after(self, tried: Tried) -> Standing:
        """Of equals the first is kept: trials of a stage are exchangeable, so it is a fair draw among them."""
        is_best = self.best is None or tried.score > self.best.score
        scores = (*self.scores, (tried.candidate, tried.score))
        return replace(self, done=self.done + 1, best=tried if is_best else self.best, scores=scores)

    def next_stage(self) -> Standing:
        centre = self.centre if self.best is None else self.best.candidate
        return replace(self, stage=self.stage + 1, done=0, centre=centre)


class Keeper(Protocol):
    """Writes down how far a tuning has come, where nobody else reads it."""

    @property
    def run(self) -> RunIdentity:
        """Identity of the tuning, by which a budget knows it."""
        ...

    def number(self, number: int) -> None:
        """Keeps which release of its budget the tuning is: the randomness of its trials comes from there."""
        ...

    def last(self) -> Standing | None:
        """Where the tuning was stopped."""
        ...

    def before_trial(self, standing: Standing) -> None:
        """No trial begins that nothing speaks for."""
        ...
