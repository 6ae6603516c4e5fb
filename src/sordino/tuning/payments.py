"""Privacy accounting of a search: random numbers of trials, payments, and prepaid budgets of single trials.

Choosing the best of several trainings reveals something about all of them. A payment gives the event of all trials
together, which is charged before the first trial begins. Each trial can then release only what was charged for it.

Random numbers of trials have the distributions of Papernot and Steinke (2022), and are drawn without reading the data.
The proof fails if the number is revealed. The cost of a stage grows with the logarithm of the mean for a negative
binomial number, which is often 1 and sometimes very large. A Poisson number is close to its mean, and costs little if a
single trial has a small epsilon.
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

_SMALLEST_PROBABILITY = 2.0**-70
_LARGEST_SHAPE = 1e6
LARGEST_MEAN = 500.0  # exp(-mean) underflows for means not much larger


@runtime_checkable
class TrialCount(Protocol):
    """A random number of trials."""

    @property
    def mean(self) -> float: ...

    @property
    def shape(self) -> float:
        """The shape of the distribution in the privacy event: infinity for Poisson."""
        ...

    def draw(self, randomness: Stream, step: int) -> int:
        """Draws the number for this address (stream and step)."""
        ...


@dataclass(frozen=True)
class PoissonNumber:
    """A Poisson number of trials, close to its mean. It is 0 with probability exp(-mean).

    >>> from sordino.kernel.randomness import Key
    >>> PoissonNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    8
    """

    mean: float

    def __post_init__(self) -> None:
        validate.between(1, LARGEST_MEAN, mean=self.mean)

    @property
    def shape(self) -> float:
        return math.inf

    def draw(self, randomness: Stream, step: int) -> int:
        uniform, probability, number = _uniform(randomness, step), math.exp(-self.mean), 0
        while uniform >= probability and (probability > _SMALLEST_PROBABILITY or number < self.mean):
            uniform -= probability
            number += 1
            probability *= self.mean / number
        return number


@dataclass(frozen=True)
class NegativeBinomialNumber:
    """A negative binomial number of trials, at least 1. Shape 0 is the logarithmic distribution, 1 the geometric one.

    A smaller shape costs less privacy.

    >>> from sordino.kernel.randomness import Key
    >>> NegativeBinomialNumber(8.0).draw(Key.from_seed(0).stream("example"), step=0)
    4
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        validate.between(0, _LARGEST_SHAPE, shape=self.shape)  # for larger shapes use PoissonNumber
        check_number_of_trials(self.mean, self.shape)

    def draw(self, randomness: Stream, step: int) -> int:
        gamma = halting_probability(self.mean, self.shape)
        uniform, number = _uniform(randomness, step), 1
        if gamma == 1:
            return number
        logarithm = self._logarithm_of_one(gamma)
        while uniform >= (probability := math.exp(logarithm)) and (
            probability > _SMALLEST_PROBABILITY or number < self.mean
        ):
            uniform -= probability
            logarithm += math.log((1 - gamma) * (number + self.shape) / (number + 1))
            number += 1
        return number

    def _logarithm_of_one(self, gamma: float) -> float:
        """Logarithm of the probability of 1, which underflows for a large shape."""
        if self.shape == 0:
            return math.log((1 - gamma) / -math.log(gamma))
        zero = self.shape * math.log(gamma)  # logarithm of the probability of 0, which is truncated
        return math.log(self.shape * (1 - gamma)) + zero - math.log(-math.expm1(zero))


def _uniform(randomness: Stream, step: int) -> float:
    return float(randomness.uniforms(1, step=step)[0])


@runtime_checkable
class Payment(Protocol):
    """Privacy accounting of the trials of a search. `sizes` are the numbers of candidates in each stage."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the proof in addition to those of a training."""
        ...

    @property
    def shows_trials(self) -> bool:
        """Whether the scores of all trials, and their number, may be published."""
        ...

    def event(self, trial: DpEvent, sizes: Sequence[int]) -> DpEvent:
        """The event of all trials together. `trial` is the event of one, whichever its candidate."""
        ...

    def expected_trials(self, sizes: Sequence[int]) -> float: ...

    def drawn(self, candidates: Sequence[Candidate], randomness: Stream, stage: int) -> tuple[Candidate, ...]:
        """The candidates of the trials of this stage."""
        ...


@dataclass(frozen=True)
class Compose:
    """Tries every candidate once and composes all trials, whose results may all be published.

    For few candidates it costs least, because composed sampled events have tight privacy loss distributions.
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
    """A random number of trials in each stage, each with a random candidate. Only the best of a stage is published.

    Guarantee: that of `accounting.selection`. A trial is one mechanism that includes the draw of its candidate, so the
    trials of a stage are independent and identically distributed. Stages compose, because the candidates of one depend
    only on the best trial of the one before.
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
    """Number of stages with candidates. A stage without candidates costs nothing."""
    return sum(size > 0 for size in sizes)


class Prepaid(Budget):
    """The budget of one trial. It allows only releases that were charged to the `whole` budget before, each once.

    Its guarantee is that of the whole search, because the trial was one of many.

    >>> import torch
    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> whole = Budget((torch.zeros(9, 2), torch.zeros(9)))
    >>> trial = Prepaid(whole, GaussianDpEvent(2.0))
    >>> trial.charge(GaussianDpEvent(2.0), Adjacency.ZERO_OUT, what="mean")
    0
    >>> trial.charge(GaussianDpEvent(2.0), Adjacency.ZERO_OUT, what="mean")
    Traceback (most recent call last):
        ...
    sordino.errors.BudgetError: the mean was not charged for this trial: a trial may release each charged release once.
    """

    def __init__(self, whole: Budget, charged: DpEvent) -> None:
        super().__init__(whole.records)
        self._whole, self._charged = whole, _counts(charged)
        self._process = whole._process  # so that use in a forked process is refused as for the whole

    @property
    def releases(self) -> tuple[str, ...]:
        return *self._whole.releases, *super().releases

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        if not _counts(ComposedDpEvent([self.event, event])) <= self._charged:
            raise BudgetError(
                f"the {what} was not charged for this trial: a trial may release each charged release once."
            )
        return super().charge(event, adjacency, what=what, run=run)

    def guarantee(self, *, delta: float, assumptions: tuple[str, ...] = ()) -> Guarantee:
        return self._whole.guarantee(delta=delta, assumptions=assumptions)


@dataclass(frozen=True)
class PrepaidTrial:
    """A candidate to try, the budget of its trial, and the key of its randomness."""

    candidate: Candidate
    budget: Prepaid = field(repr=False)
    key: Key = field(repr=False)


class Trials:
    """All trials of a search, drawn with its key. They are charged when this object is made.

    Guarantee: every trial is counted by the payment's event, and none is returned twice. With the same key and the same
    `run`, another process gets the same trials with the same randomness, so that a search can be resumed. The key of a
    trial is derived from the number of the search in its budget, from its stage and from its position.
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
        """The trials of a stage with these candidates. Each stage may be requested once."""
        if not self._next <= stage < len(self._sizes) or len(candidates) != self._sizes[stage]:
            raise BudgetError(f"stage {stage} with {len(candidates)} candidates was not charged, or was used before.")
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
