"""A tuning that survives: how far it has come lies beside its run, readable by its owner only, until it ends.

A trial counts as a step does in `checkpoint`: it is written down before it begins, and one that may have begun is
repeated bit for bit, with the same noise, or refused. So a tuning that is taken up again costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.errors import Interrupted
from sordino.kernel.budget import RunIdentity
from sordino.training.checkpoint import Checkpoint, Checkpoints, Progress
from sordino.training.loop import StopRequest
from sordino.tuning.candidates import Candidate
from sordino.tuning.standing import Standing
from sordino.tuning.task import Tried


class Kept:
    """Keeps a tuning in a private folder. `identity` tells it from others."""

    def __init__(self, checkpoints: Checkpoints, asked: StopRequest) -> None:
        self._checkpoints, self._asked = checkpoints, asked
        self.identity: Mapping[str, str] = {}

    @property
    def run(self) -> RunIdentity:
        return self._checkpoints.run

    def number(self, number: int) -> None:
        self._checkpoints.number(number)

    def last(self) -> Standing | None:
        return None if self._checkpoints.is_empty else _read(self._checkpoints.load(self.identity))

    def before_trial(self, standing: Standing) -> None:
        """Stops between two trials if asked to, without a word about how many there were."""
        done = len(standing.scores)
        begun_until = done if self._asked.to_stop else done + 1
        best = standing.best
        tensors = {} if best is None else best.weights
        self._checkpoints.save(Checkpoint(Progress(done, begun_until), tensors, _values(standing), self.identity))
        if self._asked.to_stop:
            raise Interrupted("stopped between two trials; nothing is lost, resume it.")


def _values(standing: Standing) -> dict[str, object]:
    best = standing.best
    return {
        "centre": vars(standing.centre),
        "stage": standing.stage,
        "done": standing.done,
        "scores": [[vars(candidate), score.hex()] for candidate, score in standing.scores],
        "best": None if best is None else [vars(best.candidate), best.score.hex(), best.measured],
    }


def _read(checkpoint: Checkpoint) -> Standing:
    values: Any = checkpoint.values
    best = None
    if values["best"] is not None:
        candidate, score, measured = values["best"]
        best = Tried(Candidate(**candidate), float.fromhex(score), dict(checkpoint.tensors), measured)
    scores = tuple((Candidate(**candidate), float.fromhex(score)) for candidate, score in values["scores"])
    return Standing(Candidate(**values["centre"]), values["stage"], values["done"], best, scores)
