"""What all trials have in common, and one trial carried out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.training.averaging import Averaging
from sordino.training.evaluation import Public
from sordino.training.loop import Training
from sordino.training.schedules import Constant, Schedule
from sordino.tuning.candidates import Candidate
from sordino.tuning.prepaid import Trial
from sordino.tuning.rule import Optimizer
from sordino.tuning.scores import Score


@dataclass(frozen=True)
class Tried:
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

    def attempt(self, trial: Trial) -> Tried:
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
            return Tried(candidate, -math.inf, {})
        measured = {} if self.test is None else training.measure(self.test)
        return Tried(candidate, score, weights, measured)
