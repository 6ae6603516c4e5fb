"""The second opinion: Renyi differential privacy. Looser than PLD, but quick, and it always answers.

Index letters: `a` an order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from dp_accounting.dp_event import GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant, compute_delta, compute_epsilon
from numpy.typing import NDArray

from sordino.accounting.visible import Sight

Orders = NDArray[np.float64]

ORDERS: Orders = np.array(
    [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [64, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024.0]
)


@dataclass(frozen=True)
class RdpCurve:
    """The curve that follows from Renyi divergences `rdp[a]` of order `ORDERS[a]`."""

    rdp: Orders
    name: str = "rdp"

    @classmethod
    def of(cls, sights: Iterable[tuple[Sight, int]]) -> RdpCurve:
        total = np.zeros_like(ORDERS)
        for sight, count in sights:
            if isinstance(sight.event, GaussianDpEvent | LaplaceDpEvent) and sight.event.noise_multiplier == 0:
                return cls(np.full_like(ORDERS, math.inf))
            accountant = RdpAccountant(list(ORDERS), sight.relation)
            accountant.compose(SelfComposedDpEvent(sight.event, count))
            total += accountant.rdp
        return cls(total)

    def epsilon(self, delta: float) -> float:
        if np.isinf(self.rdp).all():
            return math.inf
        return float(compute_epsilon(list(ORDERS), list(self.rdp), delta)[0])

    def delta(self, epsilon: float) -> float:
        if np.isinf(self.rdp).all():
            return 1.0
        return float(compute_delta(list(ORDERS), list(self.rdp), epsilon)[0])
