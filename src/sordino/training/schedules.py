"""Learning-rate schedules: functions of the step and the number of steps only.

So learning rates are public, and equal after a run is resumed. A schedule that reacts to a loss on private data would
be another release; it cannot be written in this form.
"""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol, TypeAlias, runtime_checkable

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sordino._input import validate
from sordino.errors import UsageError


@runtime_checkable
class Schedule(Protocol):
    """Factor of the learning rate in each step from 0 to `steps` - 1."""

    def factor(self, step: int, steps: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """Constant learning rate.

    >>> Constant().factor(7, 10)
    1.0
    """

    def factor(self, step: int, steps: int) -> float:
        _check_step(step, steps)
        return 1.0


@dataclass(frozen=True)
class Warmup:
    """Linear rise over the first `fraction` of the run, then constant.

    >>> [Warmup(0.4).factor(step, 10) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    fraction: float = 0.05

    def __post_init__(self) -> None:
        validate.between(0, 1, fraction=self.fraction)

    def factor(self, step: int, steps: int) -> float:
        _check_step(step, steps)
        rising = self.fraction * steps
        return min(1.0, (step + 1) / rising) if rising else 1.0


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 to `final`, after a linear rise over the first `warmup` of the run.

    >>> [round(Cosine().factor(step, 4), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    """

    final: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        validate.between(0, 1, final=self.final)
        validate.between(0, 1, high_open=True, warmup=self.warmup)

    def factor(self, step: int, steps: int) -> float:
        _check_step(step, steps)
        rising = self.warmup * steps
        if step < rising:
            return Warmup(self.warmup).factor(step, steps)
        fallen = (1 - math.cos(math.pi * (step - rising) / (steps - rising))) / 2
        return 1 - (1 - self.final) * fallen


@dataclass(frozen=True)
class Step:
    """Step decay: multiplied by `by` at each of the fractions `at` of the run.

    >>> [round(Step(at=(0.5, 0.75), by=0.1).factor(step, 4), 3) for step in range(4)]
    [1.0, 1.0, 0.1, 0.01]
    """

    at: tuple[float, ...] = (0.5, 0.75)
    by: float = 0.1

    def __post_init__(self) -> None:
        validate.instance(tuple, at=self.at)
        validate.between(0, 1, low_open=True, high_open=True, **{f"at[{i}]": place for i, place in enumerate(self.at)})
        validate.positive(by=self.by)
        if any(one >= other for one, other in pairwise(self.at)):
            raise UsageError("at must be strictly increasing fractions.")

    def factor(self, step: int, steps: int) -> float:
        _check_step(step, steps)
        return self.by ** sum(step >= place * steps for place in self.at)


@dataclass(frozen=True)
class RateTable:
    """Learning rates of a torch scheduler for each step and parameter group, computed before the first step.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    >>> RateTable.of(scheduler, optimizer, steps=4).rates
    ((0.8,), (0.8,), (0.4,), (0.4,))
    """

    rates: tuple[tuple[float, ...], ...] = field(repr=False)
    digest: str

    @classmethod
    def of(cls, scheduler: LRScheduler, optimizer: Optimizer, *, steps: int) -> RateTable:
        """Computes the rates of the next `steps` steps. Scheduler and optimizer are restored afterwards.

        A table depends on the step alone, so a step that is repeated after a stop has the same learning rate.
        """
        name = type(scheduler).__name__
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UsageError(
                f"schedule must not depend on a loss, got {name}: rates are computed before training. Use a schedule "
                "that depends on the step alone."
            )
        if getattr(scheduler, "optimizer", None) is not optimizer:
            raise UsageError(f"schedule must be a scheduler of the given optimizer, got a {name} of another optimizer.")
        _take_back_patch(optimizer)
        saved, groups = copy.deepcopy(scheduler.state_dict()), [_settings(group) for group in optimizer.param_groups]
        rates = []
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
            warnings.filterwarnings("ignore", message="The epoch parameter in", category=UserWarning)
            warnings.filterwarnings("ignore", message="Seems like `optimizer.step", category=UserWarning)
            for _ in range(steps):
                rates.append(tuple(float(group["lr"]) for group in optimizer.param_groups))
                changed = {
                    key
                    for group, before in zip(optimizer.param_groups, groups, strict=True)
                    for key, value in _settings(group).items()
                    if value != before[key] and key not in ("lr", "initial_lr")
                }
                if changed:
                    _restore(optimizer, groups)
                    raise UsageError(
                        f"schedule must change only learning rates, got a {name} that changes {min(changed)}: "
                        "turn that off (cycle_momentum=False)."
                    )
                scheduler.step()
        _restore(optimizer, groups)
        scheduler.load_state_dict(saved)
        table = tuple(rates)
        return cls(table, hashlib.blake2b(repr(table).encode(), digest_size=8).hexdigest())


AnySchedule: TypeAlias = "Schedule | RateTable"


def rates_at(schedule: AnySchedule, step: int, steps: int, initial: Sequence[float]) -> list[float]:
    """Learning rate of each parameter group in a step. `initial` are the rates of the optimizer.

    >>> rates_at(Warmup(0.5), 0, 4, [1.0, 0.1])
    [0.5, 0.05]
    """
    if isinstance(schedule, RateTable):
        return list(schedule.rates[step])
    factor = schedule.factor(step, steps)
    return [rate * factor for rate in initial]


def _take_back_patch(optimizer: Optimizer) -> None:
    """Removes the wrapper that a torch scheduler puts around `optimizer.step`, which is used only for a warning."""
    patched = vars(optimizer).get("step")
    if patched is not None and getattr(patched, "_wrapped_by_lr_sched", False):
        del vars(optimizer)["step"]


def _settings(group: dict[str, object]) -> dict[str, object]:
    return {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}


def _restore(optimizer: Optimizer, groups: Sequence[dict[str, object]]) -> None:
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.update(copy.deepcopy(before))


def parse(text: str) -> Schedule:
    """Parses a schedule: "constant", "warmup:0.05", "cosine", "cosine:FINAL:WARMUP" or "step:0.5,0.75:0.1".

    Settings at the end may be left out.

    >>> parse("cosine:0.1")
    Cosine(final=0.1, warmup=0.0)
    >>> parse("plateau")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: schedule must be constant, warmup, cosine or step with settings after colons, \
got 'plateau'.
    >>> parse("step:5")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: schedule must be step:PLACES:FACTOR with rising PLACES in (0, 1), as 0.5,0.75, and \
FACTOR above 0, got 'step:5'.
    """
    name, *settings = text.split(":")
    if name not in _READERS:
        raise UsageError(
            f"schedule must be constant, warmup, cosine or step with settings after colons, "
            f"got {validate.option(text)}."
        )
    make, readers, form = _READERS[name]
    try:
        if len(settings) > len(readers):
            raise ValueError
        return make(*(read(setting) for read, setting in zip(readers, settings, strict=False)))
    except ValueError:  # no number, or one out of range
        raise UsageError(f"schedule must be {form}, got {validate.option(text)}.") from None


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


_READERS: dict[str, tuple[Callable[..., Schedule], tuple[Callable[[str], object], ...], str]] = {
    "constant": (Constant, (), "constant, without settings"),
    "warmup": (Warmup, (float,), "warmup:FRACTION with FRACTION in [0, 1]"),
    "cosine": (Cosine, (float, float), "cosine:FINAL:WARMUP with FINAL in [0, 1] and WARMUP in [0, 1)"),
    "step": (
        Step,
        (_numbers, float),
        "step:PLACES:FACTOR with rising PLACES in (0, 1), as 0.5,0.75, and FACTOR above 0",
    ),
}


def _check_step(step: int, steps: int) -> None:
    validate.count(steps=steps)
    validate.count(at_least=0, at_most=steps - 1, step=step)
