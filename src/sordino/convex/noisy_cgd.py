"""NoisyCGD: noisy gradient descent on fixed disjoint batches in cyclic order. Only the last iterate is released.

    V <- Proj[ V - eta_k ((1/b) sum over batch of clip_C(gradient) + strength V + noise of std sigma_k C / b) ]

The hidden-state bound has more hypotheses than DP-SGD: fixed batches, plain gradient steps that contract, a loss whose
clipped gradient is monotone, and iterates that are not observed. Each is enforced by a type or checked when the plan is
made. `Fading` is the Gaussian noise of the steps, whose scale follows a schedule.
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
    """Gaussian noise of standard deviation `noise_multiplier` * (the schedule's factor of the step) * bound.

    Its event is that of the smallest noise of all `steps`, in every step: a bound for an observer of all steps.

    >>> from sordino.training.schedules import Cosine
    >>> round(Fading(2.0, Cosine(final=0.5), steps=100).event.noise_multiplier, 3)
    1.0
    """

    noise_multiplier: float
    schedule: Schedule
    steps: int

    arithmetic: ClassVar[str] = ROUNDED_EXACTLY

    def __post_init__(self) -> None:
        _ = self.event  # computed here, so that errors are raised early

    @property
    def event(self) -> DpEvent:
        return self._smallest.event

    def std(self, bound: float) -> float:
        return self._smallest.std(bound)

    def add(self, total: BoundedSum, at: NoiseAt) -> Private:
        return Gaussian(self.noise_multiplier * self.schedule.factor(at.step, self.steps)).add(total, at)

    def with_multiplier(self, noise_multiplier: float) -> Fading:
        return Fading(noise_multiplier, self.schedule, self.steps)

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        return self._smallest.tail_risk(sensitivity, steps)

    @property
    def _smallest(self) -> Gaussian:
        factor = min(self.schedule.factor(step, self.steps) for step in range(self.steps))
        if factor <= 0:
            raise UsageError(f"the noise schedule must stay above 0, got a factor of {factor!r}.")
        return Gaussian(self.noise_multiplier * factor)


@dataclass(frozen=True)
class NoisyCGD:
    """The plan of a NoisyCGD run, of which only the last iterate is released.

    `strength` is the coefficient of the ridge term, which is not clipped. With `radius`, V is projected to the ball of
    that radius after each step; this needs the public number of `examples`. `learning_rate` and the noise follow their
    schedules. After the last epoch, `trailing_steps` without data protect the examples of the last batch. An iterate
    that is shown after one of the epochs `shown_after` is a release of its own, and the bound restarts from it.

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
                "disjoint batches in cyclic order."
            )
        validate.instance(ConvexModel, model=self.model)
        validate.instance(CertifiedLoss, loss=self.loss)
        validate.instance(Schedule, schedule=self.schedule, noise_schedule=self.noise_schedule)
        validate.positive(clip=self.clip, learning_rate=self.learning_rate)
        Gaussian(self.noise_multiplier)  # checks the multiplier
        if self.radius is not None:
            validate.positive(radius=self.radius)
            validate.count(examples=self.examples)  # gives the batch size, which scales the ball's diameter
        validate.count(at_least=0, trailing_steps=self.trailing_steps)
        ends = (0, *self.shown_after, self.sampler.epochs)
        if any(one >= other for one, other in pairwise(ends)):
            raise UsageError(
                f"shown_after must be increasing epochs strictly between 0 and {self.sampler.epochs}, "
                f"got {validate.shown(self.shown_after)}."
            )
        _ = self._steps  # computed here, so that steps that do not contract raise an error early

    @property
    def adjacency(self) -> Adjacency:
        return self.sampler.adjacency

    @property
    def steps(self) -> int:
        """The number of all steps, including those without data."""
        return self.sampler.steps + self.trailing_steps

    def batch_size(self, examples: int) -> int:
        """The public size of the largest batch. Sums are divided by it, so no step exceeds the learning rate."""
        return -(-examples // self.sampler.batches_per_epoch)

    def learning_rate_at(self, step: int) -> float:
        return self.learning_rate * self.schedule.factor(step, self.steps)

    def noise_multiplier_at(self, step: int) -> float:
        return self.noise_multiplier * self.noise_schedule.factor(step, self.steps)

    @property
    def event(self) -> DpEvent:
        """The event of the last iterate and of each iterate shown before, for a unit in the worst batch."""
        return _event_of(self._worst_segments)

    @cached_property
    def _worst_segments(self) -> tuple[_Segment, ...]:
        """The segments between shown iterates, for a unit in the batch with the largest total mu."""
        ends = (0, *(self.sampler.batches_per_epoch * epoch for epoch in self.shown_after), self.steps)
        of_each_batch = (
            tuple(_Segment(self._mu(batch, first, last), last - first) for first, last in pairwise(ends))
            for batch in range(self.sampler.batches_per_epoch)
        )
        return max(of_each_batch, key=lambda segments: math.fsum(segment.mu**2 for segment in segments))

    def guarantee(self, *, delta: float, unit: Unit = Unit.EXAMPLE, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """The guarantee against an observer of the last iterate (and of the shown ones) and of nothing else."""
        self.check_noise(delta)
        return Guarantee.of(self.event, self.adjacency, delta=delta, unit=unit, assumptions=assumptions)

    def check_noise(self, delta: float) -> None:
        """Raises an error if the tail of the random generator would be observable at this delta."""
        smallest_noise = min(self.noise_multiplier_at(step) for step in range(self.steps))
        check_tail(Gaussian(smallest_noise), self.adjacency, steps=self.steps, delta=delta)

    def calibrated(self, *, epsilon: float, delta: float) -> NoisyCGD:
        """Returns the plan with the smallest noise whose epsilon is at most the target, rounded up.

        >>> from sordino.convex.model import GatedReLU
        >>> plan = NoisyCGD(Cyclic(60, 50), GatedReLU(8), clip=1.0, noise_multiplier=1.0, learning_rate=1.0)
        >>> round(plan.calibrated(epsilon=1.0, delta=1e-5).noise_multiplier, 2)
        5.03
        """
        noise_multiplier = smallest(self.event_at, self.adjacency, epsilon=epsilon, delta=delta)
        plan = replace(self, noise_multiplier=noise_multiplier)
        plan.check_noise(delta)
        return plan

    def event_at(self, noise_multiplier: float) -> DpEvent:
        """The event with another noise multiplier. Without a `radius`, every mu is inversely proportional to it."""
        if self.radius is not None:
            return replace(self, noise_multiplier=noise_multiplier).event
        factor = self.noise_multiplier / noise_multiplier
        return _event_of(tuple(replace(segment, mu=segment.mu * factor) for segment in self._worst_segments))

    @cached_property
    def _steps(self) -> Steps:
        """The steps for the accountant, in units of clip / batch size.

        A unit moves the iterate by the learning rate, and noise has sigma times the learning rate as deviation.
        """
        curvature = self.loss.curvature(self.model.feature_bound, self.clip)
        rates = np.array([self.learning_rate_at(step) for step in range(self.steps)])
        noises = np.array([self.noise_multiplier_at(step) for step in range(self.steps)])
        contraction = {rate: curvature.contraction(rate, self.strength) for rate in set(rates.tolist())}
        return Steps(np.array([contraction[rate] for rate in rates.tolist()]), rates * noises, rates)

    def _mu(self, batch: int, first: int, last: int) -> float:
        """The mu of steps `first` to `last`, for a unit in this batch and an observer who knows the first iterate."""
        steps = Steps(
            *(part[first:last] for part in (self._steps.contraction, self._steps.noise_std, self._steps.shift))
        )
        batch_steps = np.arange(batch, self.sampler.steps, self.sampler.batches_per_epoch)
        uses = batch_steps[(batch_steps >= first) & (batch_steps < last)] - first
        return mu_of_unit(steps, uses, diameter=self._diameter)

    @property
    def _diameter(self) -> float | None:
        """The diameter of the ball, in units of clip / batch size.

        Under replace-one the accountant doubles all shifts afterwards, so the diameter is halved here.
        """
        if self.radius is None or self.examples is None:
            return None
        factor = 0.5 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        return factor * 2 * self.radius * self.batch_size(self.examples) / self.clip


@dataclass(frozen=True)
class _Segment:
    """The steps between two iterates that are shown, and their mu for one unit."""

    mu: float
    steps: int


def _event_of(segments: tuple[_Segment, ...]) -> DpEvent:
    events: list[DpEvent] = [HiddenStateDpEvent(1 / segment.mu, segment.steps) for segment in segments]
    return events[0] if len(events) == 1 else ComposedDpEvent(events)
