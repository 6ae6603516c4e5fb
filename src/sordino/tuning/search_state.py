"""State of a search, and its checkpoint in a private folder beside the run until the search ends.

A trial is treated as a step in `training.checkpoint`: a checkpoint is written before it begins, and a trial that may
have begun is repeated bit for bit with the same noise, or refused. So resuming a search costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sordino.errors import Interrupted
from sordino.kernel.budget import RunIdentity
from sordino.training.checkpoint import Checkpoint, Checkpoints, Progress
from sordino.training.loop import StopRequest
from sordino.tuning.candidates import Candidate
from sordino.tuning.task import TrialResult


@dataclass(frozen=True)
class SearchState:
    """State of a search: number of trials `done` in a stage around `centre`, and the best trial so far.

    `scores` must not be published if the number of trials is random.
    """

    centre: Candidate
    stage: int = 0
    done: int = 0
    best: TrialResult | None = None
    scores: tuple[tuple[Candidate, float], ...] = ()

    def after(self, tried: TrialResult) -> SearchState:
        """The state after one more trial. Of equal scores the first is kept: the trials of a stage are exchangeable."""
        is_best = self.best is None or tried.score > self.best.score
        scores = (*self.scores, (tried.candidate, tried.score))
        return replace(self, done=self.done + 1, best=tried if is_best else self.best, scores=scores)

    def next_stage(self) -> SearchState:
        centre = self.centre if self.best is None else self.best.candidate
        return replace(self, stage=self.stage + 1, done=0, centre=centre)


class Keeper(Protocol):
    """Saves and loads the state of a search in a private place."""

    @property
    def run(self) -> RunIdentity:
        """Identity of the search, by which a budget recognizes it."""
        ...

    def number(self, number: int) -> None:
        """Stores the number of the search's release in its budget: the randomness of its trials depends on it."""
        ...

    def last(self) -> SearchState | None:
        """The last saved state, or None."""
        ...

    def before_trial(self, standing: SearchState) -> None:
        """Saves the state before the next trial begins."""
        ...


class SearchCheckpoint:
    """A `Keeper` that writes checkpoints to a private folder. A checkpoint with another `identity` is refused."""

    def __init__(self, checkpoints: Checkpoints, asked: StopRequest) -> None:
        self._checkpoints, self._asked = checkpoints, asked
        self.identity: Mapping[str, str] = {}

    @property
    def run(self) -> RunIdentity:
        return self._checkpoints.run

    def number(self, number: int) -> None:
        self._checkpoints.number(number)

    def last(self) -> SearchState | None:
        return None if self._checkpoints.is_empty else _read(self._checkpoints.load(self.identity))

    def before_trial(self, standing: SearchState) -> None:
        """Saves the state, and stops if asked to. The message does not reveal the number of trials."""
        done = len(standing.scores)
        begun_until = done if self._asked.to_stop else done + 1
        best = standing.best
        tensors = {} if best is None else best.weights
        self._checkpoints.save(Checkpoint(Progress(done, begun_until), tensors, _values(standing), self.identity))
        if self._asked.to_stop:
            raise Interrupted("stopped between two trials; nothing is lost, resume it.")


def _values(standing: SearchState) -> dict[str, object]:
    best = standing.best
    return {
        "centre": vars(standing.centre),
        "stage": standing.stage,
        "done": standing.done,
        "scores": [[vars(candidate), score.hex()] for candidate, score in standing.scores],
        "best": None if best is None else [vars(best.candidate), best.score.hex(), best.measured],
    }


def _read(checkpoint: Checkpoint) -> SearchState:
    values: Any = checkpoint.values
    best = None
    if values["best"] is not None:
        candidate, score, measured = values["best"]
        best = TrialResult(Candidate(**candidate), float.fromhex(score), dict(checkpoint.tensors), measured)
    scores = tuple((Candidate(**candidate), float.fromhex(score)) for candidate, score in values["scores"])
    return SearchState(Candidate(**values["centre"]), values["stage"], values["done"], best, scores)
