"""Training methods of the table. A method holds all settings except data, epsilon and seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from sordino.accounting import Adjacency, Guarantee
from sordino.convex.batch_choice import BatchChoice, choose_batches, given_batches
from sordino.convex.hidden_run import fit_hidden_state
from sordino.convex.least_squares import fit_ssp
from sordino.convex.model import Linear, PairedReLU
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.convex.random_features import Features
from sordino.convex.sufficient_statistics import Summation
from sordino.kernel.budget import Budget
from sordino.kernel.sampling import Cyclic, Poisson
from sordino.recipes.stages import parse_averaging
from sordino.training.fit import fit
from sordino.training.loop import measured
from sordino.training.schedules import parse
from sordino_papers.harness.entry import Measurement
from sordino_papers.harness.rows import ExperimentRows

DELTA = 1e-5
ADJACENCY = Adjacency.REPLACE_ONE


class HiddenStateMethod(ABC):
    """Trains a model to an epsilon under replace-one, and measures it on public rows."""

    @abstractmethod
    def train(self, rows: ExperimentRows, epsilon: float, seed: int) -> Measurement: ...

    @abstractmethod
    def quick(self) -> HiddenStateMethod:
        """A version that takes seconds: fewer steps, and a sixteenth of the gates."""


@dataclass(frozen=True)
class NoisyCgdMethod(HiddenStateMethod):
    """NoisyCGD with squared loss on a gated ReLU network or a linear model. Only the last iterate is released.

    The number of batches is chosen from the number of steps with the accountant, unless `batches` is given.
    """

    kind: ClassVar[str] = "noisy-cgd"
    gates: int | None
    clip: float
    steps: int
    learning_rate: float = 1.9
    batches: int | None = None

    def train(self, rows: ExperimentRows, epsilon: float, seed: int) -> Measurement:
        plan = self.plan(len(rows), epsilon, seed)
        fitted = fit_hidden_state(
            plan, rows.data, outputs=rows.num_classes, delta=DELTA, evaluation=rows.test, seed=seed, progress=False
        )
        accuracy, guarantee = fitted.metrics["test_accuracy"], fitted.guarantee
        return _outcome(accuracy, guarantee, _under_zero_out(guarantee), plan.noise_multiplier)

    def plan(self, examples: int, epsilon: float, seed: int) -> NoisyCGD:
        choice = self._choice(examples)
        return NoisyCGD(
            Cyclic(choice.batches_per_epoch, choice.epochs, ADJACENCY),
            Linear() if self.gates is None else PairedReLU(self.gates, seed=seed),
            clip=self.clip,
            noise_multiplier=1.0,
            learning_rate=self.learning_rate,
            trailing_steps=choice.trailing_steps,
        ).calibrated(epsilon=epsilon, delta=DELTA)

    def _choice(self, examples: int) -> BatchChoice:
        if self.batches is None:
            return choose_batches(self.steps, examples=examples)
        return given_batches(self.batches, self.steps)

    def quick(self) -> NoisyCgdMethod:
        few = self.batches and min(self.batches, 20)
        return replace(self, gates=self.gates and max(2, self.gates // 16), steps=200, batches=few)


@dataclass(frozen=True)
class DpSgdWithMomentum(HiddenStateMethod):
    """DP-SGD with Poisson sampling and momentum: on the convex model (`gates`) or a ReLU network (`width`)."""

    kind: ClassVar[str] = "dp-sgd"
    clip: float
    batch_size: int
    epochs: float
    learning_rate: float
    momentum: float
    gates: int | None = None
    width: int | None = None
    schedule: str = "constant"
    averaging: str = "none"

    def train(self, rows: ExperimentRows, epsilon: float, seed: int) -> Measurement:
        steps = round(self.epochs * len(rows) / self.batch_size)
        lr, momentum = self.learning_rate, self.momentum
        fitted = fit(
            self._network(rows, seed),
            rows.data,
            epsilon=epsilon,
            delta=DELTA,
            batch_size=self.batch_size,
            sampler=Poisson(self.batch_size / len(rows), steps, ADJACENCY),
            loss=F.cross_entropy,
            clip=self.clip,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=momentum),
            schedule=parse(self.schedule),
            averaging=parse_averaging(self.averaging),
            evaluation=rows.test,
            seed=seed,
            progress=False,
        )
        noise: Any = fitted.plan.noise
        accuracy, guarantee = fitted.metrics[-1]["test_accuracy"], fitted.guarantee
        return _outcome(accuracy, guarantee, _under_zero_out(guarantee), noise.noise_multiplier)

    def _network(self, rows: ExperimentRows, seed: int) -> nn.Module:
        inputs = rows.inputs.shape[1]
        if self.gates is not None:
            return PairedReLU(self.gates, seed=seed).build(inputs, rows.num_classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            hidden = self.width or 1
            return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, rows.num_classes))

    def quick(self) -> DpSgdWithMomentum:
        return replace(
            self, batch_size=1000, epochs=5, gates=self.gates and max(2, self.gates // 16), width=self.width and 32
        )


@dataclass(frozen=True)
class StatisticsMethod(HiddenStateMethod):
    """One release of X^T X and X^T Y on random features, followed by least squares."""

    kind: ClassVar[str] = "sufficient-statistics"
    features: Features

    def train(self, rows: ExperimentRows, epsilon: float, seed: int) -> Measurement:
        budget, features = Budget((rows.inputs.float(), rows.target)), replace(self.features, seed=seed)
        fitted = fit_ssp(
            budget,
            features,
            num_classes=rows.num_classes,
            epsilon=epsilon,
            delta=DELTA,
            adjacency=ADJACENCY,
            seed=seed,
        )
        summation = Summation.of(budget.records, features, rows.num_classes)
        event = summation.event(fitted.noise_multiplier, Adjacency.ZERO_OUT)
        zero_out = Guarantee.of(event, Adjacency.ZERO_OUT, delta=DELTA)
        accuracy = measured(fitted.model, rows.test)["accuracy"]
        return _outcome(accuracy, fitted.guarantee, zero_out, fitted.noise_multiplier)

    def quick(self) -> StatisticsMethod:
        few = {name: min(getattr(self.features, name), 100) for name in ("width",) if hasattr(self.features, name)}
        return replace(self, features=replace(self.features, **few))


def _under_zero_out(guarantee: Guarantee) -> Guarantee:
    return Guarantee.of(guarantee.event, Adjacency.ZERO_OUT, delta=DELTA)


def _outcome(accuracy: float, guarantee: Guarantee, zero_out: Guarantee, noise_multiplier: float) -> Measurement:
    more = {
        "epsilon_replace_one": guarantee.epsilon,
        "epsilon_zero_out": zero_out.epsilon,
        "delta": DELTA,
        "accountant": guarantee.accountant,
        "noise_multiplier": noise_multiplier,
    }
    return Measurement(100 * accuracy, more)
