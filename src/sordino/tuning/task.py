"""The task that all trials of a search share, one trial, and the score by which trials are compared.

A score is measured on public rows, or on private rows with noise, as a part of the trial's own release.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, runtime_checkable

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, NoOpDpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.noise import Gaussian
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.training.averaging import Averaging
from sordino.training.evaluation import Charged, Public
from sordino.training.loop import Training, take_steps
from sordino.training.schedules import Constant, Schedule
from sordino.tuning.candidates import Candidate, Optimizer
from sordino.tuning.payments import PrepaidTrial


@runtime_checkable
class Score(Protocol):
    """Score of a trial: larger is better."""

    @property
    def event(self) -> DpEvent:
        """The privacy event of one score."""
        ...

    def of(self, training: Training, trial: PrepaidTrial) -> float: ...


@dataclass(frozen=True)
class PrivateAccuracy:
    """Accuracy on the private rows, with noise of this multiplier on the number of correct units.

    >>> PrivateAccuracy(noise_multiplier=20.0).event
    GaussianDpEvent(noise_multiplier=20.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        Gaussian(self.noise_multiplier)

    @property
    def event(self) -> DpEvent:
        return Gaussian(self.noise_multiplier).event

    def of(self, training: Training, trial: PrepaidTrial) -> float:
        sampler = training.run.plan.sampler
        expected: int | None = getattr(sampler, "expected_examples", None)
        measure = Charged(
            trial.budget,
            self.noise_multiplier,
            evaluations=1,
            adjacency=sampler.adjacency,
            expected_examples=expected,
            key=trial.key,
        )
        return training.measure(measure)["accuracy"]


@dataclass(frozen=True)
class PublicScore:
    """Accuracy, or negative squared error for regression, on public rows.

    The score itself costs no privacy. The trials still do.
    """

    rows: Public

    def __post_init__(self) -> None:
        validate.instance(Public, rows=self.rows)

    @property
    def event(self) -> DpEvent:
        return NoOpDpEvent()

    def of(self, training: Training, trial: PrepaidTrial) -> float:
        found = training.measure(self.rows)
        value = found["accuracy"] if "accuracy" in found else -found.get("mse", math.inf)
        return value if math.isfinite(value) else -math.inf


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial: candidate, score, weights, and measurements on public rows."""

    candidate: Candidate
    score: float
    weights: dict[str, Tensor] = field(repr=False)
    measured: dict[str, float] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A training with clipping norm and momentum left open.

    `model` makes the network, always with the same initial weights. The clip of the plan is replaced by that of each
    candidate, and its noise by the calibrated one. `divisor` is the public batch size. `test` are public rows on which
    results are measured; they are not used to choose a candidate.
    """

    model: Callable[[], nn.Module]
    plan: Plan
    optimizer: Optimizer
    score: Score
    divisor: int
    schedule: Schedule = field(default_factory=Constant)
    averaging: Averaging | None = None
    test: Public | None = None
    physical_batch_size: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        validate.instance(Plan, plan=self.plan)
        validate.instance(Optimizer, optimizer=self.optimizer)
        validate.instance(Score, score=self.score)
        validate.count(divisor=self.divisor)

    @property
    def event(self) -> DpEvent:
        """The event of one trial, whichever its candidate: all of its steps, and its score."""
        return self.event_with(self.plan.noise.event)

    def event_with(self, release: DpEvent) -> DpEvent:
        """The event of one trial with another release in each step."""
        parts = (self.plan.sampler.compose(release, self.plan.steps), self.score.event)
        return ComposedDpEvent(parts)  # type: ignore[arg-type]  # a tuple, because events of selections must be hashable

    def with_noise(self, noise_multiplier: float) -> Task:
        return replace(self, plan=replace(self.plan, noise=self.plan.noise.with_multiplier(noise_multiplier)))

    def attempt(self, trial: PrepaidTrial) -> TrialResult:
        """Trains with one candidate. A training that diverges does not raise: that would reveal a trial that lost."""
        model, candidate = self.model(), trial.candidate
        plan = replace(self.plan, clip=ClipByNorm(candidate.clip))
        run = PrivateRun(plan, model, trial.budget, key=trial.key, physical_batch_size=self.physical_batch_size)
        optimizer = self.optimizer.make(model, candidate.momentum)
        training = Training(
            model, optimizer, run, divisor=self.divisor, schedule=self.schedule, averaging=self.averaging
        )
        take_steps(training)
        score = self.score.of(training, trial)
        weights = {name: x.clone() for name, x in training.weights().items()}
        if not all(bool(x.isfinite().all()) for x in weights.values() if x.is_floating_point()):
            return TrialResult(candidate, -math.inf, {})
        measured = {} if self.test is None else training.measure(self.test)
        return TrialResult(candidate, score, weights, measured)
