"""Gaussian noise whose scale follows a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dp_accounting.dp_event import DpEvent

from sordino.errors import UsageError
from sordino.kernel.noise import ROUNDED_EXACTLY, Gaussian, NoiseAt
from sordino.kernel.states import BoundedSum, Private
from sordino.training.schedules import Schedule


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
