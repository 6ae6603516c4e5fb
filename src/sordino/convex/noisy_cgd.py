"""NoisyCGD: gradient descent on fixed disjoint batches in cyclic order, of which only the last iterate is released.

Gaussian noise whose scale follows a schedule.

NoisyCGD: descent on fixed disjoint batches that take turns, of which only the last iterate is shown.

    V <- Proj[ V - eta_k ((1/b) sum over batch of clip_C(gradient) + strength V + noise of std sigma_k C / b) ]

A plan is a theorem, and this one has more hypotheses than DP-SGD: batches that do not change, plain steps that
contract, a loss whose clipped gradient is monotone, and a run that keeps its iterates to itself. Each is a type, or is
refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee, Unit, smallest
from sordino.accounting.events import HiddenStateDpEvent
from sordino.accounting.hidden_state import Steps, mu_of_unit
from sordino.convex.losses import CertifiedLoss, Squared
from sordino.convex.model import ConvexModel
from sordino.errors import UsageError
from sordino.kernel.noise import ROUNDED_EXACTLY, Gaussian, NoiseAt, check_tail
from sordino.kernel.sampling import Cyclic
from sordino.kernel.states import BoundedSum, Private
from sordino.training.schedules import Constant, Schedule


@dataclass(frozen=True)
class Fading:
    """In step k of `steps`, normal noise of `noise_multiplier` times the schedule's factor times the bound.

    Its own event is that of the least noise, in every step: a bound for whoever sees the steps.

    >>> from sordino.training.schedules import Cosine
    >>> round(Fading(2.0, Cosine(final=0.5), steps=100).event.noise_multiplier, 3)
    1.0
    """

    noise_multiplier: float
    schedule: Schedule
    steps: int

    arithmetic: ClassVar[str] = ROUNDED_EXACTLY

    def __post_init__(self) -> None:
        _ = self.event

    @property
    def event(self) -> DpEvent:
        return self._least.event

    def std(self, bound: float) -> float:
        return self._least.std(bound)

    def add(self, total: BoundedSum, at: NoiseAt) -> Private:
        return Gaussian(self.noise_multiplier * self.schedule.factor(at.step, self.steps)).add(total, at)

    def with_multiplier(self, noise_multiplier: float) -> Fading:
        return Fading(noise_multiplier, self.schedule, self.steps)

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        return self._least.tail_risk(sensitivity, steps)

    @property
    def _least(self) -> Gaussian:
        least = min(self.schedule.factor(step, self.steps) for step in range(self.steps))
        if least <= 0:
            raise UsageError(f"the noise schedule must stay above 0, got a factor of {least!r}.")
        return Gaussian(self.noise_multiplier * least)


@dataclass(frozen=True)
class NoisyCGD:
    """What is computed in each step, and that nothing but the end is seen.

    `strength` is that of the ridge term, outside the clip; with `radius`, V is projected on the ball of that radius
    after each step, which needs the public number of `examples`. `learning_rate` and the noise follow their schedules.
    After the last epoch come `trailing_steps` without data, which hide who was in the last batch. An iterate that is
    shown after one of the epochs `shown_after` is a release of its own, from which the bound starts anew.

    >>> from sordino.convex.model import GatedReLU
    >>> plan = NoisyCGD(Cyclic(60, 400), GatedReLU(128), clip=0.2, noise_multiplier=15.0, learning_rate=1.0)
    >>> round(plan.guarantee(delta=1e-5).epsilon, 3)
    0.664
    """

    sampler: Cyclic
    model: ConvexModel
    clip: float
    noise_multiplier: float
    learning_rate: float
    loss: CertifiedLoss = field(default_factory=Squared)
    strength: float = 0.0
    radius: float | None = None
    schedule: Schedule = field(default_factory=Constant)
    noise_schedule: Schedule = field(default_factory=Constant)
    trailing_steps: int = 0
    shown_after: tuple[int, ...] = ()
    examples: int | None = None

    def __post_init__(self) -> None:
        if type(self.sampler) is not Cyclic:
            raise UsageError(
                f"sampler must be Cyclic, got {type(self.sampler).__name__}: the hidden-state bound holds for fixed "
                "disjoint batches that take turns."
            )
        validate.instance(ConvexModel, model=self.model)
        validate.instance(CertifiedLoss, loss=self.loss)
        validate.instance(Schedule, schedule=self.schedule, noise_schedule=self.noise_schedule)
        validate.positive(clip=self.clip, learning_rate=self.learning_rate)
        Gaussian(self.noise_multiplier)
        if self.radius is not None:
            validate.positive(radius=self.radius)
            validate.count(examples=self.examples)  # how far a unit moves the iterate, against the ball's diameter
        validate.count(at_least=0, trailing_steps=self.trailing_steps)
        ends = (0, *self.shown_after, self.sampler.epochs)
        if any(one >= other for one, other in pairwise(ends)):
            raise UsageError(
                f"shown_after must be rising epochs between 0 and {self.sampler.epochs}, "
                f"got {validate.shown(self.shown_after)}."
            )
        _ = self._steps  # made here, so that steps which do not contract are refused

    @property
    def adjacency(self) -> Adjacency:
        return self.sampler.adjacency

    @property
    def steps(self) -> int:
        """All steps, those without data included."""
        return self.sampler.steps + self.trailing_steps

    def batch_size(self, examples: int) -> int:
        """The size of the largest batch, a public number: divided by it, no step is longer than said."""
        return -(-examples // self.sampler.batches_per_epoch)

    def learning_rate_at(self, step: int) -> float:
        return self.learning_rate * self.schedule.factor(step, self.steps)

    def noise_multiplier_at(self, step: int) -> float:
        return self.noise_multiplier * self.noise_schedule.factor(step, self.steps)

    @property
    def event(self) -> DpEvent:
        """The last iterate, and each that is shown before. The worst-placed unit decides."""
        return _shown(self._revealed)

    @cached_property
    def _revealed(self) -> tuple[_Segment, ...]:
        """What the worst-placed unit reveals by each iterate that is shown."""
        ends = (0, *(self.sampler.batches_per_epoch * epoch for epoch in self.shown_after), self.steps)
        places = range(self.sampler.batches_per_epoch)
        revealed = (
            tuple(_Segment(self._mu(place, *segment), segment[1] - segment[0]) for segment in pairwise(ends))
            for place in places
        )
        return max(revealed, key=lambda segments: math.fsum(segment.mu**2 for segment in segments))

    def guarantee(self, *, delta: float, unit: Unit = Unit.EXAMPLE, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """What the plan promises to whoever sees the last iterate and nothing else of the run."""
        self.check_noise(delta)
        return Guarantee.of(self.event, self.adjacency, delta=delta, unit=unit, assumptions=assumptions)

    def check_noise(self, delta: float) -> None:
        """Refuses a plan that the generator cannot carry out at this delta."""
        least = min(self.noise_multiplier_at(step) for step in range(self.steps))
        check_tail(Gaussian(least), self.adjacency, steps=self.steps, delta=delta)

    def calibrated(self, *, epsilon: float, delta: float) -> NoisyCGD:
        """The same plan with the smallest noise whose epsilon is at most the target, rounded to the safe side.

        >>> from sordino.convex.model import GatedReLU
        >>> plan = NoisyCGD(Cyclic(60, 50), GatedReLU(8), clip=1.0, noise_multiplier=1.0, learning_rate=1.0)
        >>> round(plan.calibrated(epsilon=1.0, delta=1e-5).noise_multiplier, 2)
        5.03
        """
        noise_multiplier = smallest(self._event_at, self.adjacency, epsilon=epsilon, delta=delta)
        found = replace(self, noise_multiplier=noise_multiplier)
        found.check_noise(delta)
        return found

    def _event_at(self, noise_multiplier: float) -> DpEvent:
        """The event with other noise. Without a ball every mu is in inverse proportion to it."""
        if self.radius is not None:
            return replace(self, noise_multiplier=noise_multiplier).event
        less = self.noise_multiplier / noise_multiplier
        return _shown(tuple(replace(segment, mu=segment.mu * less) for segment in self._revealed))

    @cached_property
    def _steps(self) -> Steps:
        """In units of clip / batch size: a unit moves the iterate by the learning rate, noise by sigma times that."""
        curvature = self.loss.curvature(self.model.feature_bound, self.clip)
        rates = np.array([self.learning_rate_at(step) for step in range(self.steps)])
        noises = np.array([self.noise_multiplier_at(step) for step in range(self.steps)])
        contraction = {rate: curvature.contraction(rate, self.strength) for rate in set(rates.tolist())}
        return Steps(np.array([contraction[rate] for rate in rates.tolist()]), rates * noises, rates)

    def _mu(self, place: int, first: int, last: int) -> float:
        """What the steps from `first` to `last` reveal of a unit in batch `place` to whoever knows where they began."""
        steps = Steps(
            *(part[first:last] for part in (self._steps.contraction, self._steps.noise_std, self._steps.shift))
        )
        turns = np.arange(place, self.sampler.steps, self.sampler.batches_per_epoch)
        uses = turns[(turns >= first) & (turns < last)] - first
        return mu_of_unit(steps, uses, diameter=self._diameter)

    @property
    def _diameter(self) -> float | None:
        """Of the ball, in the same units.

        Replace-one doubles all shifts later on: as if the ball were half as large.
        """
        if self.radius is None or self.examples is None:
            return None
        share = 0.5 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        return share * 2 * self.radius * self.batch_size(self.examples) / self.clip


@dataclass(frozen=True)
class _Segment:
    """Steps between two iterates that are shown, and what they reveal of a unit."""

    mu: float
    steps: int


def _shown(segments: tuple[_Segment, ...]) -> DpEvent:
    events: list[DpEvent] = [HiddenStateDpEvent(1 / segment.mu, segment.steps) for segment in segments]
    return events[0] if len(events) == 1 else ComposedDpEvent(events)
