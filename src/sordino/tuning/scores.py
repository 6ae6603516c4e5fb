"""By what the best trial is known: a score on public rows, or on private ones as a part of the trial's own release."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dp_accounting.dp_event import DpEvent, NoOpDpEvent

from sordino._input import validate
from sordino.kernel.noise import Gaussian
from sordino.training.evaluation import Charged, Public
from sordino.training.loop import Training
from sordino.tuning.prepaid import Trial


@runtime_checkable
class Score(Protocol):
    """How good a trial is: the larger, the better."""

    @property
    def event(self) -> DpEvent:
        """What one score is worth."""
        ...

    def of(self, training: Training, trial: Trial) -> float: ...


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

    def of(self, training: Training, trial: Trial) -> float:
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

    def of(self, training: Training, trial: Trial) -> float:
        found = training.measure(self.rows)
        value = found["accuracy"] if "accuracy" in found else -found.get("mse", math.inf)
        return value if math.isfinite(value) else -math.inf
