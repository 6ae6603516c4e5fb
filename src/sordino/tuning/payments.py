"""How trials are paid for: random numbers of trials, payments, and prepaid budgets.

How many trials there are, drawn without looking at the data. Whoever sees what was drawn breaks the proof.

The distributions are those of Papernot and Steinke (2022). The price of a stage rises with the logarithm of the mean
for a negative binomial number, of which many are 1 and some are very large. A Poisson number is close to its mean, and
cheap as long as one trial is very private.

How trials are paid for. Whoever takes the best of several trainings reveals something about all of them.

A payment says what all trials together are worth before the first of them begins, and which trials there are.

Trials are charged before the first of them begins, and each can spend what was paid for it and nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, RepeatAndSelectDpEvent, SelfComposedDpEvent

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee
from sordino.accounting.events import flatten
from sordino.accounting.selection import check_number_of_trials, halting_probability
from sordino.errors import BudgetError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.randomness import Key, Stream
from sordino.tuning.candidates import Candidate

_NEXT_TO_NOTHING = 2.0**-70
_LARGEST_SHAPE = 1e6
_MOST = 500.0  # above, exp(-mean) soon is 0 in floating point


@runtime_checkable
class TrialCount(Protocol):
    """A random number of trials."""

    @property
    def mean(self) -> float: ...

    @property
    def shape(self) -> float:
        """By which the event names the distribution."""
        ...

    def draw(self, randomness: Stream, step: int) -> int:
        """The number at this address."""
        ...


@dataclass(frozen=True)
class PoissonNumber:
    """Close to its mean. With a chance of exp(-mean) there is no trial at all.

    >>> from sordino.kernel.randomness import Key
    >>> PoissonNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    8
    """

    mean: float

    def __post_init__(self) -> None:
        validate.between(1, _MOST, mean=self.mean)

    @property
    def shape(self) -> float:
        return math.inf

    def draw(self, randomness: Stream, step: int) -> int:
        uniform, chance, number = _uniform(randomness, step), math.exp(-self.mean), 0
        while uniform >= chance and (chance > _NEXT_TO_NOTHING or number < self.mean):
            uniform -= chance
            number += 1
            chance *= self.mean / number
        return number


@dataclass(frozen=True)
class NegativeBinomialNumber:
    """At least 1. Shape 0 is the logarithmic distribution, 1 the geometric one; a smaller shape is cheaper.

    >>> from sordino.kernel.randomness import Key
    >>> NegativeBinomialNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    4
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        validate.between(0, _LARGEST_SHAPE, shape=self.shape)  # beyond, it is Poisson, which has a class of its own
        check_number_of_trials(self.mean, self.shape)

    def draw(self, randomness: Stream, step: int) -> int:
        gamma = halting_probability(self.mean, self.shape)
        uniform, number = _uniform(randomness, step), 1
        if gamma == 1:
            return number
        logarithm = self._logarithm_of_one(gamma)
        while uniform >= (chance := math.exp(logarithm)) and (chance > _NEXT_TO_NOTHING or number < self.mean):
            uniform -= chance
            logarithm += math.log((1 - gamma) * (number + self.shape) / (number + 1))
            number += 1
        return number

    def _logarithm_of_one(self, gamma: float) -> float:
        """Of the chance of 1, which is too small for floating point where the shape is large. Later ones are not."""
        if self.shape == 0:
            return math.log((1 - gamma) / -math.log(gamma))
        of_none = self.shape * math.log(gamma)  # the chance of 0, which is cut off
        return math.log(self.shape * (1 - gamma)) + of_none - math.log(-math.expm1(of_none))


def _uniform(randomness: Stream, step: int) -> float:
    return float(randomness.uniforms(1, step=step)[0])


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

    number: TrialCount

    def __post_init__(self) -> None:
        validate.instance(TrialCount, number=self.number)

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


class Prepaid(Budget):
    """The budget of one trial: it takes the releases that were charged to the `whole` before, each once.

    What is promised of a trial is what is promised of the whole: one of many trainings is not worth less.

    >>> import torch
    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> whole = Budget((torch.zeros(9, 2), torch.zeros(9)))
    >>> trial = Prepaid(whole, GaussianDpEvent(2.0))
    >>> trial.charge(GaussianDpEvent(2.0), Adjacency.ZERO_OUT, what="mean")
    0
    >>> trial.charge(GaussianDpEvent(2.0), Adjacency.ZERO_OUT, what="mean")
    Traceback (most recent call last):
        ...
    sordino.errors.BudgetError: the mean was not paid for: a trial may release what was charged for it, once.
    """

    def __init__(self, whole: Budget, paid: DpEvent) -> None:
        super().__init__(whole.records)
        self._whole, self._paid = whole, _counts(paid)
        self._process = whole._process  # what a forked process makes of the whole is no budget of its own

    @property
    def releases(self) -> tuple[str, ...]:
        return *self._whole.releases, *super().releases

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        if not _counts(ComposedDpEvent([self.event, event])) <= self._paid:
            raise BudgetError(f"the {what} was not paid for: a trial may release what was charged for it, once.")
        return super().charge(event, adjacency, what=what, run=run)

    def guarantee(self, *, delta: float, assumptions: tuple[str, ...] = ()) -> Guarantee:
        return self._whole.guarantee(delta=delta, assumptions=assumptions)


@dataclass(frozen=True)
class PrepaidTrial:
    """A candidate to be tried, what it may spend, and its randomness."""

    candidate: Candidate
    budget: Prepaid = field(repr=False)
    key: Key = field(repr=False)


class Trials:
    """All trials of a tuning. They are charged when this is made; which they are follows from the key.

    Guarantee: no trial is handed out that the payment's event does not count, and none twice. With the same key and
    the same `run` they are the same in another process, with the same randomness, so that a tuning can be taken up
    again. The key of each trial follows from the number of this tuning in its budget, from its stage and its place.
    """

    def __init__(
        self,
        budget: Budget,
        payment: Payment,
        trial: DpEvent,
        sizes: Sequence[int],
        adjacency: Adjacency,
        key: Key,
        run: RunIdentity | None = None,
    ) -> None:
        self._budget, self._payment, self._trial, self._sizes = budget, payment, trial, tuple(sizes)
        self._next = 0
        address = budget.address(payment.event(trial, sizes), adjacency, what="tuning", key=key, run=run)
        self.number, self._key = address.number, address.key

    def of_stage(self, stage: int, candidates: Sequence[Candidate]) -> tuple[PrepaidTrial, ...]:
        """The trials among these candidates, as many as were paid for."""
        if not self._next <= stage < len(self._sizes) or len(candidates) != self._sizes[stage]:
            raise BudgetError(f"stage {stage} with {len(candidates)} candidates was not paid for, or was had before.")
        self._next = stage + 1
        drawn = self._payment.drawn(candidates, self._key.stream("trials"), stage)
        return tuple(
            PrepaidTrial(candidate, Prepaid(self._budget, self._trial), self._key_of(stage, place))
            for place, candidate in enumerate(drawn)
        )

    def _key_of(self, stage: int, place: int) -> Key:
        return Key(self._key.stream(f"trial {stage} {place}").secret, self._key.reproducible)


def _counts(event: DpEvent) -> Counter[DpEvent]:
    return Counter({part.mechanism: part.count for part in flatten(event)})
