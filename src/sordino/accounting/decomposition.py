"""One epoch of random allocation, seen as Poisson sampling that is known to have picked the unit at least once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent

from sordino.accounting.direction import Direction
from sordino.accounting.pld import dominating_pairs
from sordino.accounting.visible import Sight


@dataclass(frozen=True)
class PoissonDecomposition:
    """A bound for a single epoch of `bins` steps (Feldman and Shenfeld 2025, decomposition).

    With rate 1 / bins, Poisson sampling does not pick a unit at all with probability 1 - `picked`, and else at least
    once, which is no more private than exactly once: means that grow coordinate by coordinate only add to the privacy
    loss (Choquette-Choo et al. 2024, on mixtures of Gaussians). So the hockey-stick divergence of one epoch follows
    from that of `bins` Poisson steps, in each direction by itself.
    """

    multiplier: float
    bins: int
    name: str = "random-allocation"

    def epsilon(self, delta: float) -> float:
        return max(self._epsilon_of_removing(delta), self._epsilon_of_adding(delta))

    def delta(self, epsilon: float) -> float:
        of_removing = self._removing.delta(math.log1p(self._picked * math.expm1(epsilon))) / self._picked
        # exp(-poisson) = 1 - picked * (1 - exp(-epsilon)).
        poisson = -math.log1p(self._picked * math.expm1(-epsilon))
        of_adding = self._adding.delta(poisson) / self._share_of_adding(poisson)
        return min(1.0, max(of_removing, of_adding))

    def _epsilon_of_removing(self, delta: float) -> float:
        poisson = self._removing.epsilon(delta * self._picked)
        return math.log1p(math.expm1(poisson) / self._picked) if poisson < 700 else poisson - math.log(self._picked)

    def _epsilon_of_adding(self, delta: float) -> float:
        poisson, share = 0.0, self._picked
        # The share shrinks as epsilon grows: the first epsilon that holds with its own share is valid.
        for _ in range(30):
            found = self._adding.epsilon(delta * share)
            if found <= poisson:
                return -math.log1p(math.expm1(-poisson) / self._picked)
            poisson = found * (1 + 1e-6)
            share = self._share_of_adding(poisson)
            if share <= 0:
                break
        return math.inf

    def _share_of_adding(self, poisson: float) -> float:
        return 1 - math.exp(poisson) * (1 - self._picked)

    @cached_property
    def _picked(self) -> float:
        return -math.expm1(self.bins * math.log1p(-1 / self.bins))

    @cached_property
    def _directions(self) -> tuple[Direction, Direction]:
        removing, adding = dominating_pairs(
            Sight(PoissonSampledDpEvent(1 / self.bins, GaussianDpEvent(self.multiplier)))
        )
        return Direction((removing,), (self.bins,)), Direction((adding,), (self.bins,))

    @property
    def _removing(self) -> Direction:
        return self._directions[0]

    @property
    def _adding(self) -> Direction:
        return self._directions[1]
