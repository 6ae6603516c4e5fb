"""`RunWriter` writes the run folder and the private checkpoints of a run, and decides when they are due."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sordino.accounting import Guarantee, privacy_of
from sordino.errors import StateError, UsageError
from sordino.gradients.torch_state import device_of
from sordino.kernel.budget import RunIdentity
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records
from sordino.kernel.run import PrivateRun
from sordino.kernel.sampling import Sampler
from sordino.kernel.step import Plan
from sordino.training.checkpoint import Checkpoint, Checkpoints, Progress, digest_of_tensors, gradient_fingerprint
from sordino.training.run_folder import PromisedRun, RunFolder

if TYPE_CHECKING:
    from sordino.training.loop import Training


_SECONDS_BETWEEN_CHECKPOINTS = 20.0
_STEPS_BETWEEN_CHECKPOINTS = 1 / 50  # as a fraction of all steps: at most these are charged again with draw_again
_EVALUATIONS = 20


class RunWriter:
    """Writes the run folder and the private folder beside it during a training."""

    def __init__(self, folder: RunFolder, checkpoints: Checkpoints) -> None:
        self._folder, self._checkpoints = folder, checkpoints
        self._progress, self._identity = Progress(), dict[str, str]()
        self._device = torch.device("cpu")
        self._gradients = ""  # fingerprint of model, loss and optimizer as the run began
        self._saved_at = time.monotonic()

    @classmethod
    def begin(cls, folder: RunFolder, key: Key) -> RunWriter:
        """Begins a new run in a folder without one."""
        if folder.is_begun or folder.private.exists():
            raise UsageError(f"{str(folder.path)!r} has a run already: resume it, or choose another folder.")
        return cls(folder, Checkpoints.begin(folder.private, key))

    @classmethod
    def resume(cls, folder: RunFolder, key: Key) -> RunWriter:
        """Resumes an unfinished run, or begins a new one with `key` if there is none."""
        folder.sweep()
        if folder.private.exists():
            return cls(folder, Checkpoints.open(folder.private))
        if folder.is_begun:
            raise StateError(f"{str(folder.private)!r} is missing, and the key with it: the run cannot be continued.")
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
        """Loads the last checkpoint of the run, or None. Plan, data and `settings` identify the run."""
        data = records.fingerprint(self._checkpoints.fingerprint_key())
        self._device, self._identity = device_of(model), {"plan": repr(plan.stages), "data": data, **settings}
        self._gradients = gradient_fingerprint(plan.contribution, model, records, optimizer)
        if self._checkpoints.is_empty:
            return None
        period = plan.sampler.period if draw_again else None
        checkpoint = self._checkpoints.load(
            self._identity, self._device, gradients=self._gradients, draw_again_every=period
        )
        self._progress = checkpoint.progress
        return checkpoint

    @property
    def key(self) -> Key:
        """The key of the next steps."""
        return self._checkpoints.key(self._progress)

    @property
    def run(self) -> RunIdentity:
        """Identity of the run, by which a budget recognizes it."""
        return self._checkpoints.run

    @property
    def drawn_again(self) -> int:
        """Number of steps that are charged twice, because they were begun with two keys."""
        return self._progress.drawn_again

    def describe(self, about: Mapping[str, object]) -> None:
        """Writes public facts about the training, unless the folder has a recipe."""
        if not self._folder.has_recipe:
            self._folder.write_training(about)

    def promise(
        self, promised: Mapping[str, object], *, number: int, plan: str, noise_multiplier: float, drawn_again: int = 0
    ) -> list[dict[str, object]]:
        """Writes the guarantee of the whole run before its first step. Returns the metrics of the steps done so far.

        The arguments after `promised` identify the run for a budget: see `PromisedRun`.
        """
        self._checkpoints.number(number)
        run = PromisedRun(self.run.name, number, plan, noise_multiplier, drawn_again)
        self._folder.write_privacy({**promised, "identity": asdict(run)})
        self._folder.forget_after(self._progress.step)
        return self._folder.metrics()

    def before_step(self, training: Training) -> None:
        """Writes a checkpoint if none covers the next step, or the last one is too old."""
        step, steps = training.run.steps, len(training.run)
        is_due = time.monotonic() > self._saved_at + _SECONDS_BETWEEN_CHECKPOINTS
        if step >= self._progress.begun_until or is_due:
            ahead = max(1, math.floor(steps * _STEPS_BETWEEN_CHECKPOINTS))
            self._save(training, begun_until=min(step + ahead, steps))

    def at_rest(self, training: Training) -> None:
        """Writes a checkpoint between two steps, with none begun, so that the run can be resumed on any machine."""
        self._save(training, begun_until=training.run.steps)

    def add(self, row: Mapping[str, object]) -> None:
        """Writes a row of public values to the metrics."""
        self._folder.add_metrics(row)

    def before_showing(self, training: Training, epoch: int) -> dict[str, Tensor]:
        """The weights to release after this epoch, always the same ones for a run.

        Guarantee: before they are released they are in the last checkpoint, from which a stopped run continues, and
        their digest is in the run folder. Other weights are refused: with fresh noise they would be a second release,
        which is not charged.
        """
        self.at_rest(training)
        weights = training.weights()
        digest, before = digest_of_tensors(weights), self._folder.shown().get(str(epoch))
        if before is None:
            self._folder.add_shown(epoch, digest)
        elif before != digest:
            raise StateError(
                f"other weights were released after epoch {epoch} of this run: its private folder was replaced by an "
                "older one, and its steps were repeated with other noise. Begin a new run, and charge it."
            )
        return {name: x.detach().clone() for name, x in weights.items()}

    def decide(self, training: Training) -> None:
        """Writes the final weights. They are not computed again after that, so no others can be released."""
        self._folder.write_model(training.weights())

    def end(self) -> None:
        """Deletes the private folder with the key."""
        self._checkpoints.destroy()

    def finish(self, training: Training) -> None:
        """Writes the weights, then deletes the key, so that a run killed in between can still be finished."""
        self.decide(training)
        self.end()

    def close(self) -> None:
        """Releases the lock of the private folder."""
        self._checkpoints.close()

    def _save(self, training: Training, *, begun_until: int) -> None:
        self._progress = replace(self._progress, step=training.run.steps, begun_until=begun_until)
        checkpoint = replace(training.checkpoint(self._progress), identity=self._identity)
        self._checkpoints.save(checkpoint, self._device, gradients=self._gradients)
        self._saved_at = time.monotonic()


def promised_fields(
    sampler: Sampler, numbers: Mapping[str, float], noise_multiplier: float, guarantee: Guarantee
) -> dict[str, object]:
    """Fields of privacy.json, as `sordino plan --json` prints them. `numbers` are examples, batch_size and steps."""
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


def evaluations_until(step: int, steps: int) -> int:
    """Number of evaluations in the first `step` of `steps` steps.

    >>> evaluations_until(100, 100), evaluations_until(10, 100), evaluations_until(7, 7)
    (20, 2, 7)
    """
    return sum(is_evaluated(each, steps) for each in range(1, step + 1))


def is_evaluated(step: int, steps: int) -> bool:
    """Whether there is an evaluation after step `step`: about twenty times per run, and always after the last step.

    >>> [step for step in range(1, 101) if is_evaluated(step, 100)][:3]
    [5, 10, 15]
    """
    return step * _EVALUATIONS // steps > (step - 1) * _EVALUATIONS // steps


def epsilon_so_far(run: PrivateRun, promised: Guarantee) -> float:
    """Epsilon of the steps taken so far, at most the epsilon of the guarantee for the whole run."""
    if run.steps >= len(run):
        return promised.epsilon
    return min(privacy_of(run.event_so_far, run.plan.adjacency).epsilon(promised.delta), promised.epsilon)
