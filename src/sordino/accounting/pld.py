"""The default accountant: privacy loss distributions, composed numerically and rounded to the safe side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dp_accounting.dp_event import SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

from sordino.accounting.visible import Sight


@dataclass(frozen=True)
class PldCurve:
    """The curve of the composition of `sights`."""

    sights: tuple[tuple[Sight, int], ...]
    name: str = "pld"

    @classmethod
    def of(cls, sights: Iterable[tuple[Sight, int]]) -> PldCurve:
        return cls(tuple(sights))

    def epsilon(self, delta: float) -> float:
        return max(0.0, float(self._accountant.get_epsilon(delta)))

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(self._accountant.get_delta(epsilon)))

    @cached_property
    def _accountant(self) -> PLDAccountant:
        (relation,) = {sight.relation for sight, _ in self.sights}
        accountant = PLDAccountant(relation)
        for sight, count in self.sights:
            accountant.compose(SelfComposedDpEvent(sight.event, count))
        return accountant
