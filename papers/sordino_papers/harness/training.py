"""A training of this family as a value: a network, how it descends, and which part of its gradients is zeroed."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from sordino import models
from sordino.accounting import Adjacency, Guarantee
from sordino.data import Facts
from sordino.data.standard import root
from sordino.encodings import Cooling, RandomSparsify
from sordino.encodings.sparsify import RateSchedule
from sordino.kernel.augmentation import Views
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian
from sordino.kernel.sampling import Poisson, Sampler, steps_per_epoch
from sordino.kernel.step import Plan
from sordino.recipes.stages import parse_averaging
from sordino.training.averaging import Averaging
from sordino.training.checkpoint import surroundings
from sordino.training.evaluation import Evaluation
from sordino.training.fit import Fitted, fit
from sordino.training.run_folder import RunFolder
from sordino_papers.harness.carried_out import carried_out
from sordino_papers.harness.entry import Measured
from sordino_papers.harness.rows import Rows

DELTA = 1e-5
ADJACENCY = Adjacency.ZERO_OUT


@dataclass(frozen=True)
class Sparsity:
    """Random sparsification that ends at `final_rate`. With `masks_per_epoch` None there is a mask in every step."""

    final_rate: float
    masks_per_epoch: int | None = 1
    schedule: RateSchedule = field(default_factory=Cooling)

    def encoding(self, steps: int, per_epoch: int) -> RandomSparsify:
        return RandomSparsify.throughout(
            steps,
            final_rate=self.final_rate,
            steps_per_epoch=per_epoch,
            refresh=per_epoch if self.masks_per_epoch is None else self.masks_per_epoch,
            schedule=self.schedule,
        )


@dataclass(frozen=True)
class Trial:
    """All that decides a training but the rows, epsilon and the seed. `network` is a name of `sordino.models`."""

    network: str
    batch_size: int
    epochs: float
    learning_rate: float
    clip: float
    momentum: float
    sparsity: Sparsity | None = None
    averaging: str = "none"

    def to_epsilon(
        self, rows: Rows, epsilon: float, seed: int, out: Path | None = None, sampler: Sampler | None = None
    ) -> Measured:
        """Trains with the noise that `epsilon` needs, and measures the accuracy on the public rows."""
        return outcome_of(self.fitted(rows, epsilon, seed, out, sampler))

    def fitted(
        self, rows: Rows, epsilon: float, seed: int, out: Path | None = None, sampler: Sampler | None = None
    ) -> Fitted:
        """Trains with the noise that `epsilon` needs, on Poisson batches unless a sampler is given.

        With `out` it can be stopped, and goes on.
        """
        folder, model = None if out is None else RunFolder(out), self.build(rows.facts, seed)
        return fit(
            model,
            rows.data,
            epsilon=epsilon,
            delta=DELTA,
            batch_size=self.batch_size,
            sampler=sampler or self.poisson(len(rows)),
            loss=F.cross_entropy,
            clip=self.clip,
            encoding=self.encoding_of(model, len(rows)),
            views=self.seen,
            autocast=self.autocast,
            optimizer=self.optimizer,
            averaging=self.average,
            evaluation=Evaluation(at_end=rows.test),
            seed=seed,
            out=out,
            resume=folder is not None and not folder.is_free,
            progress=False,
        )

    def with_noise(self, rows: Rows, sampler: Sampler, noise_multiplier: float, seed: int) -> Measured:
        """Trains with a noise multiplier that is given, and says which epsilon it is worth with this sampler."""
        plan = self.plan(sampler, noise_multiplier, len(rows))
        accuracy = carried_out(
            plan,
            self.build(rows.facts, seed),
            rows,
            optimizer=self.optimizer,
            divisor=self.batch_size,
            seed=seed,
            averaging=self.average,
        )
        return outcome(accuracy, plan.guarantee(delta=DELTA), noise_multiplier)

    def plan(self, sampler: Sampler, noise_multiplier: float, examples: int) -> Plan:
        """What is released on so many rows."""
        clip, noise = ClipByNorm(self.clip), Gaussian(noise_multiplier)
        return Plan(sampler, LossGradient(F.cross_entropy, self.autocast), clip, noise, self.encoding(examples))

    def poisson(self, examples: int) -> Poisson:
        return Poisson(self.batch_size / examples, self.steps(examples), ADJACENCY)

    def steps(self, examples: int) -> int:
        return round(self.epochs * examples / self.batch_size)

    def encoding(self, examples: int) -> Encoding:
        if self.sparsity is None:
            return Unchanged()
        return self.sparsity.encoding(self.steps(examples), steps_per_epoch(examples, self.batch_size))

    def encoding_of(self, model: nn.Module, examples: int) -> Encoding:
        """The same where it needs to know the model that is trained."""
        return self.encoding(examples)

    @property
    def seen(self) -> Views | None:
        """How each row is seen: once, as it is."""
        return None

    @property
    def autocast(self) -> torch.dtype | None:
        """In which half precision products are taken: in none."""
        return None

    def build(self, facts: Facts, seed: int) -> nn.Module:
        return models.build(self.network, facts, seed=seed).module

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)

    @property
    def average(self) -> Averaging | None:
        return parse_averaging(self.averaging)


@dataclass(frozen=True)
class HalvedTrial(Trial):
    """The same with products in bfloat16, in three quarters of the time. Norms, sums, noise and weights are float32."""

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16


def outcome_of(fitted: Fitted) -> Measured:
    """What a training that is done came to."""
    noise: Any = fitted.plan.noise
    return outcome(fitted.metrics[-1]["test_accuracy"], fitted.guarantee, noise.noise_multiplier)


def outcome(accuracy: float, guarantee: Guarantee, noise_multiplier: float) -> Measured:
    """An accuracy in percent, with what was promised beside it."""
    more = {
        "epsilon": guarantee.epsilon,
        "delta": DELTA,
        "accountant": guarantee.accountant,
        "noise_multiplier": noise_multiplier,
    }
    return Measured(100 * accuracy, more)


def unfinished(*decided_by: object) -> Path:
    """The folder of a training that takes long, in the cache: stopped and asked for again, it goes on.

    Only where it can be repeated bit for bit: with other code or on another machine it begins anew, in another folder.
    """
    name = hashlib.sha256(repr((*decided_by, surroundings())).encode()).hexdigest()[:32]
    return root() / "trainings" / name


def forget(folder: Path) -> None:
    """Removes a training whose outcome is kept."""
    shutil.rmtree(folder, ignore_errors=True)
