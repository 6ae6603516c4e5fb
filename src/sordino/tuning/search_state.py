"""State of a search, and its private checkpoint.

How far a search has come: all that the next trial depends on.

A tuning that survives: how far it has come lies beside its run, readable by its owner only, until it ends.

A trial counts as a step does in `checkpoint`: it is written down before it begins, and one that may have begun is
repeated bit for bit, with the same noise, or refused. So a tuning that is taken up again costs nothing more.
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
    """How far a tuning has come: trials `done` in a stage around `centre`, and the best of all so far.

    `scores` are for whoever may see every trial; with a random number of them nobody may.
    """

    centre: Candidate
    stage: int = 0
    done: int = 0
    best: TrialResult | None = None
    scores: tuple[tuple[Candidate, float], ...] = ()

    def after(self, tried: TrialResult) -> SearchState:
        """Of equals the first is kept: trials of a stage are exchangeable, so it is a fair draw among them."""
        is_best = self.best is None or tried.score > self.best.score
        scores = (*self.scores, (tried.candidate, tried.score))
        return replace(self, done=self.done + 1, best=tried if is_best else self.best, scores=scores)

    def next_stage(self) -> SearchState:
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

    def last(self) -> SearchState | None:
        """Where the tuning was stopped."""
        ...

    def before_trial(self, standing: SearchState) -> None:
        """No trial begins that nothing speaks for."""
        ...


class SearchCheckpoint:
    """Keeps a tuning in a private folder. `identity` tells it from others."""

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
        """Stops between two trials if asked to, without a word about how many there were."""
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
