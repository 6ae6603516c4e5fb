"""The tightest valid bound wins, and is named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from sordino import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.curves import SMALLEST_DELTA, GaussianCurve, PrivacyCurve
from sordino.accounting.events import flatten
from sordino.accounting.pld import PldCurve
from sordino.accounting.rdp import RdpCurve
from sordino.accounting.visible import Sight, visible

UNAMPLIFIED = "composition-without-amplification"


@dataclass(frozen=True)
class Answer:
    """An epsilon, and the accountant that proves it."""

    epsilon: float
    accountant: str


@dataclass(frozen=True)
class TightestCurve:
    """The smallest of several valid curves, at each query. Each is a bound, so their minimum is one."""

    curves: tuple[PrivacyCurve, ...]
    name: str = "tightest"

    def answer(self, delta: float) -> Answer:
        """The smallest epsilon proved at `delta`, and who proves it."""
        check_delta(delta)
        return min((Answer(curve.epsilon(delta), curve.name) for curve in self.curves), key=lambda each: each.epsilon)

    def epsilon(self, delta: float) -> float:
        return self.answer(delta).epsilon

    def delta(self, epsilon: float) -> float:
        validate.between(0, math.inf, epsilon=epsilon)
        return min(curve.delta(epsilon) for curve in self.curves)


def privacy_of(event: DpEvent, adjacency: Adjacency, *, tight: bool = False) -> TightestCurve:
    """The privacy curve of an event: at each query the tightest of the bounds that hold for it.

    >>> from dp_accounting.dp_event import SelfComposedDpEvent
    >>> ten_gaussians = SelfComposedDpEvent(GaussianDpEvent(5.0), 10)
    >>> privacy_of(ten_gaussians, Adjacency.REPLACE_ONE).answer(1e-5)  # doctest: +ELLIPSIS
    Answer(epsilon=5.759..., accountant='exact-gaussian')
    """
    curves = _curves(event, adjacency, tight=tight)
    return TightestCurve(curves[:1] if curves[0].name == "exact-gaussian" else curves)


def opinions(event: DpEvent, adjacency: Adjacency, delta: float) -> list[Answer]:
    """What every accountant says, tightest first, with composition that forgets the sampling for comparison."""
    check_delta(delta)
    answers = [Answer(curve.epsilon(delta), curve.name) for curve in _curves(event, adjacency, tight=False)]
    return sorted(answers, key=lambda each: each.epsilon)


def check_delta(delta: float) -> None:
    """Delta is a probability, above 0 because Gaussian noise never gives a pure guarantee."""
    validate.between(SMALLEST_DELTA, 1, high_open=True, delta=delta)


def _curves(event: DpEvent, adjacency: Adjacency, *, tight: bool) -> tuple[PrivacyCurve, ...]:
    validate.instance(Adjacency, adjacency=adjacency)
    seen = [(visible(part.mechanism, adjacency), part.count) for part in flatten(event)]
    plain = [(each.plain, count) for each, count in seen]
    sampled = any(each.is_sampled for each, _ in seen)
    curves: list[PrivacyCurve] = [_plain_curve(plain, UNAMPLIFIED if sampled else "exact-gaussian")]
    if any(each.pld for each, _ in seen):
        curves.append(PldCurve.of((each.pld or each.plain, count) for each, count in seen))
    if any(each.rdp for each, _ in seen):
        curves.append(RdpCurve.of((each.rdp or each.plain, count) for each, count in seen))
    return tuple(curves)


def _plain_curve(sights: Sequence[tuple[Sight, int]], name: str) -> PrivacyCurve:
    mu_squared = 0.0
    for sight, count in sights:
        if not isinstance(sight.event, GaussianDpEvent):
            return PldCurve(tuple(sights), UNAMPLIFIED)
        mu_squared += count / sight.event.noise_multiplier**2 if sight.event.noise_multiplier else math.inf
    return GaussianCurve(math.sqrt(mu_squared), name)
