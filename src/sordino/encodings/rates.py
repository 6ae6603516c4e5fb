"""How many coordinates are zeroed under each mask of a run: functions of the mask's number and of nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from sordino._input import validate
from sordino.errors import UsageError


@runtime_checkable
class RateSchedule(Protocol):
    """The share of coordinates that mask number `mask` of `masks` zeroes, at most `final_rate`."""

    def rate(self, final_rate: float, mask: int, masks: int) -> float: ...


@dataclass(frozen=True)
class Cooling:
    """Rises linearly from 0 under the first mask to `final_rate` under the last: early steps gain most from all.

    >>> [Cooling().rate(0.9, mask, 4) for mask in range(5)]
    [0.0, 0.3, 0.6, 0.9, 0.9]
    """

    def rate(self, final_rate: float, mask: int, masks: int) -> float:
        return min(final_rate * mask / (masks - 1), final_rate) if masks > 1 else 0.0


@dataclass(frozen=True)
class ConstantRate:
    """The final rate from the start, for comparison.

    >>> ConstantRate().rate(0.9, 0, 4)
    0.9
    """

    def rate(self, final_rate: float, mask: int, masks: int) -> float:
        return final_rate


@dataclass(frozen=True)
class Sparsification:
    """Which mask holds in a step, and how many coordinates it zeroes.

    There are `refresh` masks in an epoch of `steps_per_epoch` steps: 1 for one per epoch, `steps_per_epoch` for a new
    one in every step. Steps after the last epoch go on at the last rate.

    >>> sparsification = Sparsification(0.9, epochs=3, steps_per_epoch=4)
    >>> [sparsification.mask_number(step) for step in range(12)]
    [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    >>> [sparsification.zeroed(step, 1000) for step in (0, 4, 8)]
    [0, 450, 900]
    """

    final_rate: float
    epochs: int
    steps_per_epoch: int
    refresh: int = 1
    schedule: RateSchedule = field(default_factory=Cooling)

    def __post_init__(self) -> None:
        validate.between(0, 1, high_open=True, final_rate=self.final_rate)
        validate.count(epochs=self.epochs, steps_per_epoch=self.steps_per_epoch)
        validate.count(at_most=self.steps_per_epoch, refresh=self.refresh)
        validate.instance(RateSchedule, schedule=self.schedule)
        masks = self.refresh * self.epochs
        if self.final_rate and not self.schedule.rate(self.final_rate, masks - 1, masks):
            raise UsageError(
                f"a rate that rises reaches final_rate {self.final_rate:g} under the last of two masks or more, got "
                f"{masks} mask: train for two epochs at least, or refresh masks more often."
            )

    def mask_number(self, step: int) -> int:
        """How many masks came before the one of this step."""
        return step * self.refresh // self.steps_per_epoch

    def rate(self, step: int) -> float:
        """The share of coordinates that is zeroed in this step."""
        return self.schedule.rate(self.final_rate, self.mask_number(step), self.refresh * self.epochs)

    def zeroed(self, step: int, size: int) -> int:
        """How many of `size` coordinates are zeroed in this step, exactly."""
        return int(self.rate(step) * size)
