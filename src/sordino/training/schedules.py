"""Learning rates over a run: functions of the step and of the number of steps, and of nothing else.

So they are public, and the same after a run is resumed. A rate that reacts to a loss on private data would be a
release of its own; none can be written in this form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

from sordino._input import validate
from sordino.errors import UsageError


@runtime_checkable
class Schedule(Protocol):
    """What the learning rate is multiplied by in step 0 to `steps` - 1."""

    def factor(self, step: int, steps: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """The same rate throughout.

    >>> Constant().factor(7, 10)
    1.0
    """

    def factor(self, step: int, steps: int) -> float:
        _check_step(step, steps)
        return 1.0


@dataclass(frozen=True)
class Warmup:
    """Rises in equal steps over the first `fraction` of the run, then stays.

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
    """Multiplied by `by` at each of the fractions `at` of the run.

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
            raise UsageError("at must rise: each fraction above the one before.")

    def factor(self, step: int, steps: int) -> float:
        _check_step(step, steps)
        return self.by ** sum(step >= place * steps for place in self.at)


def parse(text: str) -> Schedule:
    """A schedule from its name and its settings in order: "constant", "warmup:0.05", "cosine", "cosine:FINAL:WARMUP",
    "step:0.5,0.75:0.1". Settings at the end may be left out.

    >>> parse("cosine:0.1")
    Cosine(final=0.1, warmup=0.0)
    >>> parse("plateau")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: schedule must be constant, warmup, cosine or step with settings after colons, \
got 'plateau'.
    """
    name, *settings = text.split(":")
    if name not in _READERS or len(settings) > len(_READERS[name][1]):
        raise UsageError(
            f"schedule must be constant, warmup, cosine or step with settings after colons, "
            f"got {validate.option(text)}."
        )
    make, readers = _READERS[name]
    try:
        values = [read(setting) for read, setting in zip(readers, settings, strict=False)]
    except ValueError:
        raise UsageError(f"settings of a schedule must be numbers, got {validate.option(text)}.") from None
    return make(*values)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


_READERS: dict[str, tuple[Callable[..., Schedule], tuple[Callable[[str], object], ...]]] = {
    "constant": (Constant, ()),
    "warmup": (Warmup, (float,)),
    "cosine": (Cosine, (float, float)),
    "step": (Step, (_numbers, float)),
}


def _check_step(step: int, steps: int) -> None:
    validate.count(steps=steps)
    validate.count(at_least=0, at_most=steps - 1, step=step)
