"""Trials are charged before the first of them begins, and each can spend what was paid for it and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino.accounting import Adjacency, Guarantee
from sordino.accounting.events import flatten
from sordino.errors import BudgetError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.randomness import Key
from sordino.tuning.candidates import Candidate
from sordino.tuning.payments import Payment


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
class Trial:
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

    def of_stage(self, stage: int, candidates: Sequence[Candidate]) -> tuple[Trial, ...]:
        """The trials among these candidates, as many as were paid for."""
        if not self._next <= stage < len(self._sizes) or len(candidates) != self._sizes[stage]:
            raise BudgetError(f"stage {stage} with {len(candidates)} candidates was not paid for, or was had before.")
        self._next = stage + 1
        drawn = self._payment.drawn(candidates, self._key.stream("trials"), stage)
        return tuple(
            Trial(candidate, Prepaid(self._budget, self._trial), self._key_of(stage, place))
            for place, candidate in enumerate(drawn)
        )

    def _key_of(self, stage: int, place: int) -> Key:
        return Key(self._key.stream(f"trial {stage} {place}").secret, self._key.reproducible)


def _counts(event: DpEvent) -> Counter[DpEvent]:
    return Counter({part.mechanism: part.count for part in flatten(event)})
