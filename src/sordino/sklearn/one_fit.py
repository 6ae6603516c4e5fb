"""The budget of one fit, within the budget of the data that several fits share.

Theorem. Let each fold of a cross-validation be some of the units of one data set, chosen without looking at their
values. A unit that a fold leaves out changes nothing there, so each fit is as private for the whole data set as for its
own fold, and all of them together are their sequential composition, in which each may depend on those before.
"""

from __future__ import annotations

from collections.abc import Callable

from dp_accounting.dp_event import DpEvent

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.records import Records


class OneFit(Budget):
    """Holds the rows of one fit. Whatever is charged here is charged to the `shared` budget first, which may refuse.

    >>> import torch
    >>> from dp_accounting import GaussianDpEvent
    >>> from sordino.kernel.records import as_records
    >>> shared = Budget((torch.zeros(9, 2), torch.zeros(9)))
    >>> for fold in (range(0, 6), range(3, 9)):
    ...     rows = as_records((torch.zeros(len(fold), 2), torch.zeros(len(fold))))
    ...     OneFit(rows, shared).charge(GaussianDpEvent(5.0), Adjacency.ZERO_OUT, what="training run")
    0
    1
    >>> shared.releases
    ('training run', 'training run')
    """

    def __init__(self, records: Records, shared: Budget | None) -> None:
        super().__init__(records)
        if shared is not None:
            validate.instance(Budget, budget=shared)
            if shared.records.unit is not records.unit:
                raise UsageError(
                    f"one budget has one unit: it protects each {shared.records.unit}, this fit each {records.unit}."
                )
            self._addresses = shared._addresses
        self._shared = shared

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        """Numbered by the shared budget, so that fits with one `random_state` draw noise of their own."""
        if self._shared is None:
            return super().charge(event, adjacency, what=what, run=run)
        number = self._shared.charge(event, adjacency, what=what, run=run)
        super().charge(event, adjacency, what=what, run=run)
        return number

    def check_target(
        self,
        event_at: Callable[[float], DpEvent],
        noise_multiplier: float,
        adjacency: Adjacency,
        *,
        what: str,
        delta: float,
        epsilon: float | None = None,
    ) -> None:
        """Asks the shared budget, which may have a limit."""
        check = super().check_target if self._shared is None else self._shared.check_target
        check(event_at, noise_multiplier, adjacency, what=what, delta=delta, epsilon=epsilon)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee of this fit leaves out."""
        if self._shared is None or len(self._shared.releases) == 1:
            return ()
        releases = len(self._shared.releases)
        return (f"this fit is counted alone: its budget holds {releases} releases, and has a guarantee",)
