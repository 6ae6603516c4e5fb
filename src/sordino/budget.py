"""One data set, one budget: everything released from the data is composed here."""

from __future__ import annotations

from threading import Lock
from typing import NoReturn

from dp_accounting.dp_event import ComposedDpEvent, DpEvent

from sordino import validate
from sordino.accounting import Adjacency, Guarantee, privacy_of
from sordino.accounting.answer import check_delta
from sordino.accounting.guarantee import rounded_up
from sordino.errors import BudgetError, UsageError
from sordino.records import Records, as_records


class Budget:
    """Holds the data and adds up the events of all that is released from it.

    With `epsilon` and `delta` it is a limit: a release that would exceed it is refused before the data is touched. A
    release is charged when it is planned, and stays charged if it is stopped early.

    >>> import torch
    >>> from dp_accounting import GaussianDpEvent
    >>> budget = Budget((torch.zeros(9, 2), torch.zeros(9)), epsilon=1.0, delta=1e-5)
    >>> budget.charge(GaussianDpEvent(5.0), Adjacency.ZERO_OUT, what="mean of the inputs")
    >>> budget.guarantee(delta=1e-5).epsilon < 1.0
    True
    """

    def __init__(self, data: object, *, epsilon: float | None = None, delta: float | None = None) -> None:
        if (epsilon is None) != (delta is None):
            raise UsageError("a limit needs both epsilon and delta, or neither.")
        if epsilon is not None and delta is not None:
            validate.positive(epsilon=epsilon)
            check_delta(delta, is_pure=True)  # with 0, whatever is not pure is refused when it is charged
        self.records: Records = as_records(data)
        self.epsilon, self.delta = epsilon, delta
        self._releases: list[tuple[str, DpEvent]] = []
        self._adjacency: Adjacency | None = None
        self._charging = Lock()  # two threads that each see room for one release must not both take it

    @property
    def event(self) -> DpEvent:
        """All releases so far, composed."""
        return ComposedDpEvent([event for _, event in self._releases])

    @property
    def releases(self) -> tuple[str, ...]:
        """What was released, in order."""
        return tuple(what for what, _ in self._releases)

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str) -> None:
        """Adds a release, or refuses it. Nothing may be computed from the data before it is charged."""
        with self._charging:
            self._refuse_if_too_much(event, adjacency, what)
            self._adjacency = adjacency
            self._releases.append((what, event))

    def guarantee(self, *, delta: float, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """What all releases together promise."""
        adjacency = self._adjacency or Adjacency.ZERO_OUT
        unit = self.records.unit
        return Guarantee.of(self.event, adjacency, delta=delta, unit=unit, assumptions=assumptions)

    def __deepcopy__(self, memo: object) -> Budget:
        """The same budget: what holds one is copied with it (scikit-learn does), and goes on spending from it."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a budget cannot be copied, saved or sent to another process, where what is spent would be forgotten: "
            "work in one process (n_jobs=None), and take it off what is to be saved (set_params(budget=None))."
        )

    def _refuse_if_too_much(self, event: DpEvent, adjacency: Adjacency, what: str) -> None:
        if self._adjacency not in (None, adjacency):
            raise UsageError(
                f"one budget has one adjacency: it holds {self._adjacency}, got {adjacency} for the {what}."
            )
        if self.epsilon is not None and self.delta is not None:
            total = privacy_of(ComposedDpEvent([self.event, event]), adjacency).epsilon(self.delta)
            if total > self.epsilon:
                raise BudgetError(
                    f"the {what} would bring epsilon to {rounded_up(total, 6)} under {adjacency} at delta "
                    f"{self.delta:g}; allowed is {self.epsilon:g}."
                )
