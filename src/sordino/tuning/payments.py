"""How trials are paid for. Whoever takes the best of several trainings reveals something about all of them.

A payment says what all trials together are worth before the first of them begins, and which trials there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, RepeatAndSelectDpEvent, SelfComposedDpEvent

from sordino._input import validate
from sordino.kernel.randomness import Stream
from sordino.tuning.candidates import Candidate
from sordino.tuning.number import Number


@runtime_checkable
class Payment(Protocol):
    """What the trials of a tuning cost, and which they are. `sizes` are the numbers of candidates, stage by stage."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the proof takes for granted beyond that of a training."""
        ...

    @property
    def shows_trials(self) -> bool:
        """Whether the score of every trial may be seen, and how many there are."""
        ...

    def event(self, trial: DpEvent, sizes: Sequence[int]) -> DpEvent:
        """What all trials together are worth, if one is worth `trial`, whichever the candidate."""
        ...

    def expected_trials(self, sizes: Sequence[int]) -> float: ...

    def drawn(self, candidates: Sequence[Candidate], randomness: Stream, stage: int) -> tuple[Candidate, ...]:
        """The candidates of this stage, one for each trial."""
        ...


@dataclass(frozen=True)
class Compose:
    """Every candidate once, and everything about every trial may be seen: they compose.

    Among few candidates it is the cheapest, because a sampled event may be accounted for by privacy loss distributions.
    """

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ()

    @property
    def shows_trials(self) -> bool:
        return True

    def event(self, trial: DpEvent, sizes: Sequence[int]) -> DpEvent:
        return SelfComposedDpEvent(trial, sum(sizes))

    def expected_trials(self, sizes: Sequence[int]) -> float:
        return sum(sizes)

    def drawn(self, candidates: Sequence[Candidate], randomness: Stream, stage: int) -> tuple[Candidate, ...]:
        return tuple(candidates)


@dataclass(frozen=True)
class Repeat:
    """A random number of trials in each stage, each of a candidate drawn uniformly; only the best of a stage is seen.

    Guarantee: that of `accounting.selection`. A trial is one mechanism, of which drawing the candidate is a part: the
    trials of a stage are independent and alike. Stages compose, because what is drawn in one depends on the best of
    the one before only.
    """

    number: Number

    def __post_init__(self) -> None:
        validate.instance(Number, number=self.number)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return ("trials that were not the best of their stage stay secret: what they gave, how many, and their time",)

    @property
    def shows_trials(self) -> bool:
        return False

    def event(self, trial: DpEvent, sizes: Sequence[int]) -> DpEvent:
        stage = RepeatAndSelectDpEvent(trial, self.number.mean, self.number.shape)
        return ComposedDpEvent([stage] * _stages_to_try(sizes))

    def expected_trials(self, sizes: Sequence[int]) -> float:
        return self.number.mean * _stages_to_try(sizes)

    def drawn(self, candidates: Sequence[Candidate], randomness: Stream, stage: int) -> tuple[Candidate, ...]:
        if not candidates:
            return ()
        number = self.number.draw(randomness, step=2 * stage)
        places = (randomness.uniforms(number, step=2 * stage + 1) * len(candidates)).astype(int)
        return tuple(candidates[place] for place in places)


def _stages_to_try(sizes: Sequence[int]) -> int:
    """A stage without candidates tries nothing, and costs nothing."""
    return sum(size > 0 for size in sizes)
