"""What a training writes down on its way: checkpoints for itself, and rows of public quantities for everybody."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from sordino.accounting import Guarantee, privacy_of
from sordino.errors import StateError, UsageError
from sordino.gradients.surroundings import device_of
from sordino.kernel.budget import RunIdentity
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Sampler
from sordino.kernel.step import Plan
from sordino.training.checkpoint import Checkpoint, Checkpoints, Progress, digest_of_tensors
from sordino.training.gradient_fingerprint import rehearsal
from sordino.training.loop import Training
from sordino.training.run_folder import PromisedRun, RunFolder

_SECONDS_BETWEEN_CHECKPOINTS = 20.0
_SHARE_BETWEEN_CHECKPOINTS = 1 / 50  # of all steps: what must be paid again at most if it has to be drawn again
_MARKS = 20


class Journal:
    """Keeps the run folder and its private twin. A training without a folder has none."""

    def __init__(self, folder: RunFolder, checkpoints: Checkpoints) -> None:
        self._folder, self._checkpoints = folder, checkpoints
        self._progress, self._identity = Progress(), dict[str, str]()
        self._device = torch.device("cpu")
        self._rehearse: Callable[[], str] = str
        self._saved_at = time.monotonic()

    @classmethod
    def begin(cls, folder: RunFolder, key: Key) -> Journal:
        """A new run, in a folder that holds none."""
        if folder.is_begun or folder.private.exists():
            raise UsageError(f"{str(folder.path)!r} holds a run already: resume it, or choose another folder.")
        return cls(folder, Checkpoints.begin(folder.private, key))

    @classmethod
    def resume(cls, folder: RunFolder, key: Key) -> Journal:
        """An unfinished run, or a new one with `key` where nothing has begun yet."""
        folder.sweep()
        if folder.private.exists():
            return cls(folder, Checkpoints.open(folder.private))
        if folder.is_begun:
            raise StateError(f"{str(folder.private)!r} is gone, and with it the key: the run cannot be continued.")
        return cls.begin(folder, key)

    def last_checkpoint(
        self,
        plan: Plan,
        model: nn.Module,
        records: Records,
        settings: Mapping[str, str],
        *,
        optimizer: torch.optim.Optimizer | None = None,
        draw_again: bool,
    ) -> Checkpoint | None:
        """Where the run stands, if it is this run. `settings` tell it from others, as the plan and the data do."""
        data = records.fingerprint(self._checkpoints.fingerprint_key())
        self._device, self._identity = device_of(model), {"plan": repr(plan.stages), "data": data, **settings}
        self._rehearse = partial(rehearsal, plan.contribution, model, records, optimizer)
        if self._checkpoints.is_empty:
            return None
        period = plan.sampler.period if draw_again else None
        checkpoint = self._checkpoints.load(
            self._identity, self._device, gradients=self._gradients, draw_again_every=period
        )
        self._progress = checkpoint.progress
        return checkpoint

    @cached_property
    def _gradients(self) -> str:
        """By what model and optimizer do a run is told from others too. Looked at before the first checkpoint."""
        return self._rehearse()

    @property
    def key(self) -> Key:
        """The key of the steps that follow."""
        return self._checkpoints.key(self._progress)

    @property
    def run(self) -> RunIdentity:
        """Identity of the run, by which a budget knows it."""
        return self._checkpoints.run

    @property
    def drawn_again(self) -> int:
        """How many steps are taken twice, under two keys."""
        return self._progress.drawn_again

    def promise(
        self, promised: Mapping[str, object], *, number: int, plan: str, noise_multiplier: float, drawn_again: int = 0
    ) -> list[dict[str, object]]:
        """Says what the run will have cost before its first step. Gives the rows of the steps done so far.

        What follows `promised` is by which a budget knows the run: see `PromisedRun`.
        """
        self._checkpoints.number(number)
        run = PromisedRun(self.run.name, number, plan, noise_multiplier, drawn_again)
        self._folder.write_privacy({**promised, "identity": asdict(run)})
        self._folder.forget_after(self._progress.step)
        return self._folder.metrics()

    def before_step(self, training: Training) -> None:
        """No step begins that no checkpoint speaks for."""
        step, steps = training.run.steps, len(training.run)
        is_due = time.monotonic() > self._saved_at + _SECONDS_BETWEEN_CHECKPOINTS
        if step >= self._progress.begun_until or is_due:
            ahead = max(1, math.floor(steps * _SHARE_BETWEEN_CHECKPOINTS))
            self._save(training, begun_until=min(step + ahead, steps))

    def at_rest(self, training: Training) -> None:
        """Between steps, with none begun: from here the run can go on anywhere."""
        self._save(training, begun_until=training.run.steps)

    def add(self, row: Mapping[str, object]) -> None:
        """A row of public quantities."""
        self._folder.add_metrics(row)

    def before_showing(self, training: Training, epoch: int) -> dict[str, Tensor]:
        """The weights that may be shown after this epoch: the same ones whenever, wherever and however often.

        Guarantee: they are in the last checkpoint, from which a stopped run goes on, and their digest lies outside the
        private folder, before anybody sees them. Other weights are not shown in their place: with fresh noise, they
        would be another release, which nobody has paid for.
        """
        self.at_rest(training)
        weights = training.weights()
        digest, before = digest_of_tensors(weights), self._folder.shown().get(str(epoch))
        if before is None:
            self._folder.add_shown(epoch, digest)
        elif before != digest:
            raise StateError(
                f"other weights were shown after epoch {epoch} of this run: its private folder was replaced by an "
                "older one, and its steps have been drawn again. Begin a new run, and charge it."
            )
        return {name: x.detach().clone() for name, x in weights.items()}

    def decide(self, training: Training) -> None:
        """Writes the weights that are released in the end. They are not computed again, so none take their place."""
        self._folder.write_model(training.weights())

    def end(self) -> None:
        """Deletes the key, and all that lies beside it."""
        self._checkpoints.destroy()

    def finish(self, training: Training) -> None:
        """The weights are written before the key is deleted, so that a kill between the two loses neither."""
        self.decide(training)
        self.end()

    def close(self) -> None:
        """Lets another process take over."""
        self._checkpoints.close()

    def _save(self, training: Training, *, begun_until: int) -> None:
        self._progress = replace(self._progress, step=training.run.steps, begun_until=begun_until)
        checkpoint = replace(training.checkpoint(self._progress), identity=self._identity)
        self._checkpoints.save(checkpoint, self._device, gradients=self._gradients)
        self._saved_at = time.monotonic()


def digest_of(*stages: object) -> str:
    """Digest of a plan: the run that a folder holds is worth what its plan is."""
    return hashlib.blake2b(repr(stages).encode(), digest_size=16).hexdigest()


def described(
    sampler: Sampler, numbers: Mapping[str, int], noise_multiplier: float, guarantee: Guarantee
) -> dict[str, object]:
    """The fields that planning prints, for a plan that is carried out. `numbers` are examples, batch_size and steps."""
    rate = numbers["batch_size"] / numbers["examples"]
    return {
        **numbers,
        "sample_rate": rate,
        "epochs": numbers["steps"] * rate,
        "noise_multiplier": noise_multiplier,
        "sampler": sampler.name,
        "solved_for": "noise_multiplier",
        "notes": [],
        **guarantee.as_dict(),
    }


def marks_until(step: int, steps: int) -> int:
    """How many rows are due in the first `step` of all steps.

    >>> marks_until(100, 100), marks_until(10, 100), marks_until(7, 7)
    (20, 2, 7)
    """
    return sum(is_mark(each, steps) for each in range(1, step + 1))


def is_mark(step: int, steps: int) -> bool:
    """Whether a row is due after so many of all steps: about twenty times in a run, and at its end.

    >>> [step for step in range(1, 101) if is_mark(step, 100)][:3]
    [5, 10, 15]
    """
    return step * _MARKS // steps > (step - 1) * _MARKS // steps


def epsilon_so_far(run: PrivateRun, promised: Guarantee) -> float:
    """What the steps taken so far are worth, and never more than what is promised for all of them."""
    if run.steps >= len(run):
        return promised.epsilon
    return min(privacy_of(run.event_so_far, run.plan.adjacency).epsilon(promised.delta), promised.epsilon)
