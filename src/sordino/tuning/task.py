"""One trial of a search, and the score by which the best trial is chosen.

By what the best trial is known: a score on public rows, or on private ones as a part of the trial's own release.

What all trials have in common, and one trial carried out.
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
from sordino.training.loop import Training
from sordino.training.schedules import Constant, Schedule
from sordino.tuning.candidates import Candidate, Optimizer
from sordino.tuning.payments import PrepaidTrial


@runtime_checkable
class Score(Protocol):
    """How good a trial is: the larger, the better."""

    @property
    def event(self) -> DpEvent:
        """What one score is worth."""
        ...

    def of(self, training: Training, trial: PrepaidTrial) -> float: ...


@dataclass(frozen=True)
class PrivateAccuracy:
    """Accuracy on the private rows themselves, with noise of this multiplier on the number of units that are right.

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
    """Accuracy, or less error where the target is a number, on rows that are declared public.

    It costs nothing by itself. The trials that are compared by it cost what they do.
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
    """A candidate, how good it was, and what it gave: weights, and measures on public rows."""

    candidate: Candidate
    score: float
    weights: dict[str, Tensor] = field(repr=False)
    measured: dict[str, float] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class Task:
    """A training with clip norm and momentum left open. `model` makes the network, with the same first weights always.

    The clip of the plan is replaced by each candidate's, and so is its noise, once it is calibrated. `divisor` is the
    public batch size. `test` are public rows on which the best is measured in the end, and by which none is chosen.
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
        """What one trial is worth, whichever its candidate: all of its steps, and its score."""
        return self.event_with(self.plan.noise.event)

    def event_with(self, release: DpEvent) -> DpEvent:
        """The same with another release in each step."""
        parts = (self.plan.sampler.compose(release, self.plan.steps), self.score.event)
        return ComposedDpEvent(parts)  # type: ignore[arg-type]  # a tuple is a value, as the event of a selection has to be

    def with_noise(self, noise_multiplier: float) -> Task:
        return replace(self, plan=replace(self.plan, noise=self.plan.noise.with_multiplier(noise_multiplier)))

    def attempt(self, trial: PrepaidTrial) -> TrialResult:
        """Trains by one candidate. A training that diverges raises nothing, or a trial that lost would be heard of."""
        model, candidate = self.model(), trial.candidate
        plan = replace(self.plan, clip=ClipByNorm(candidate.clip))
        run = PrivateRun(plan, model, trial.budget, key=trial.key, physical_batch_size=self.physical_batch_size)
        optimizer = self.optimizer.make(model, candidate.momentum)
        training = Training(
            model, optimizer, run, divisor=self.divisor, schedule=self.schedule, averaging=self.averaging
        )
        while run.steps < len(run):
            training.step()
        score = self.score.of(training, trial)
        weights = {name: x.clone() for name, x in training.weights().items()}
        if not all(bool(x.isfinite().all()) for x in weights.values() if x.is_floating_point()):
            return TrialResult(candidate, -math.inf, {})
        measured = {} if self.test is None else training.measure(self.test)
        return TrialResult(candidate, score, weights, measured)
