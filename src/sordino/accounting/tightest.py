"""The tightest of all valid bounds on an event, with the name of the accountant that proves it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.dp_event import DpEvent, GaussianDpEvent, RepeatAndSelectDpEvent

from sordino._input import validate
from sordino.accounting.accountant_views import AccountantView, MechanismViews, views_of
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.balls_in_bins import TightAllocation
from sordino.accounting.curves import SMALLEST_DELTA, GaussianCurve, PrivacyCurve, deltas_of
from sordino.accounting.dominating_pairs import Pair, ProfilePair, Reals
from sordino.accounting.events import HiddenStateDpEvent, RandomAllocationDpEvent, Repeated, flatten
from sordino.accounting.pld import PairsCurve, PldCurve, dominating_pairs, has_enough_noise
from sordino.accounting.pure import AdvancedComposition, PureComposition, pure_curves
from sordino.accounting.rdp import RdpCurve
from sordino.accounting.selection import BestOf, has_selection, selection_curve
from sordino.errors import UsageError

EXACT, ALLOCATION, UNAMPLIFIED = "exact-gaussian", "random-allocation", "composition-without-amplification"
HIDDEN = "hidden-state"

CountedViews = list[tuple[MechanismViews, int]]
_QUICK = GaussianCurve | RdpCurve | PureComposition | AdvancedComposition


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
        """The smallest epsilon proved at `delta`, and the accountant that proves it."""
        return min(_answers(self.curves, delta), key=lambda each: each.epsilon)

    @property
    def is_pure(self) -> bool:
        """Whether one of the curves proves an epsilon at delta 0."""
        return bool(_answering_at_zero(self.curves))

    @property
    def quick(self) -> TightestCurve:
        """The curves that are computed quickly, without a Fourier transform for each answer."""
        return TightestCurve(tuple(curve for curve in self.curves if isinstance(curve, _QUICK)))

    def epsilon(self, delta: float) -> float:
        return self.answer(delta).epsilon

    def delta(self, epsilon: float) -> float:
        validate.between(0, math.inf, epsilon=epsilon)
        return min(curve.delta(epsilon) for curve in self.curves)

    def deltas(self, epsilons: Reals) -> Reals:
        """The deltas at many epsilons in rising order."""
        return np.asarray(np.min([deltas_of(curve, epsilons) for curve in self.curves], axis=0))


def privacy_of(event: DpEvent, adjacency: Adjacency, *, tight: bool = False) -> TightestCurve:
    """The privacy curve of an event: for each query, the tightest of all valid bounds.

    >>> from dp_accounting.dp_event import SelfComposedDpEvent
    >>> ten_gaussians = SelfComposedDpEvent(GaussianDpEvent(5.0), 10)
    >>> privacy_of(ten_gaussians, Adjacency.REPLACE_ONE).answer(1e-5)  # doctest: +ELLIPSIS
    Answer(epsilon=5.759..., accountant='exact-gaussian')
    """
    curves = _curves(event, adjacency, tight=tight)
    return TightestCurve(curves[:1] if curves[0].name in (EXACT, HIDDEN) else curves)


def all_answers(event: DpEvent, adjacency: Adjacency, delta: float) -> list[Answer]:
    """The answers of all accountants, tightest first, with composition without amplification for comparison.

    >>> from dp_accounting.dp_event import SelfComposedDpEvent
    >>> ten_gaussians = SelfComposedDpEvent(GaussianDpEvent(5.0), 10)
    >>> [each.accountant for each in all_answers(ten_gaussians, Adjacency.ZERO_OUT, 1e-5)]
    ['exact-gaussian', 'pld', 'rdp']
    """
    best: dict[str, float] = {}
    for answer in _answers(_curves(event, adjacency, tight=False), delta):
        best[answer.accountant] = min(answer.epsilon, best.get(answer.accountant, math.inf))
    return sorted((Answer(epsilon, name) for name, epsilon in best.items()), key=lambda each: each.epsilon)


def check_delta(delta: float, *, is_pure: bool = False) -> None:
    """Refuses a delta that is no probability, and a delta of 0 unless all releases are pure."""
    if delta == 0 and delta is not False:
        if not is_pure:
            interval = f"[{SMALLEST_DELTA:g}, 1)"
            raise UsageError(
                f"delta must be in {interval} unless all that is released is pure, got {validate.shown(delta)}."
            )
    else:
        validate.between(SMALLEST_DELTA, 1, high_open=True, delta=delta)


def _answers(curves: tuple[PrivacyCurve, ...], delta: float) -> list[Answer]:
    pure = _answering_at_zero(curves)
    check_delta(delta, is_pure=bool(pure))
    return [Answer(curve.epsilon(delta), curve.name) for curve in (curves if delta else pure)]


def _answering_at_zero(curves: tuple[PrivacyCurve, ...]) -> tuple[PrivacyCurve, ...]:
    return tuple(curve for curve in curves if isinstance(curve, PureComposition))


def _curves(event: DpEvent, adjacency: Adjacency, *, tight: bool) -> tuple[PrivacyCurve, ...]:
    """All valid curves of an event. An exact one comes first."""
    validate.instance(Adjacency, adjacency=adjacency)
    parts = flatten(event)
    if has_selection(parts):
        return _selection_curves(parts, adjacency)
    if not parts:
        return (PureComposition(0.0),)
    mechanisms = [(views_of(part.mechanism, adjacency), part.count) for part in parts]
    plain = [(each.plain, count) for each, count in mechanisms]
    if any(view.event.noise_multiplier == 0 for view, _ in plain):
        return (GaussianCurve(math.inf),)
    is_sampled = any(each.is_sampled for each, _ in mechanisms)
    curves: list[PrivacyCurve] = []
    if all(isinstance(view.event, GaussianDpEvent) for view, _ in plain):
        mu = math.sqrt(math.fsum(count / view.event.noise_multiplier**2 for view, count in plain))
        exact = HIDDEN if any(isinstance(part.mechanism, HiddenStateDpEvent) for part in parts) else EXACT
        curves.append(GaussianCurve(mu, UNAMPLIFIED if is_sampled else exact))
    elif is_sampled:
        curves += [PldCurve.of(plain, UNAMPLIFIED), RdpCurve.of(plain, UNAMPLIFIED)]
    if any(each.rdp for each, _ in mechanisms):
        curves.append(_renyi_curve(mechanisms))
    losses = [(each.pld or each.plain, count) for each, count in mechanisms]
    curves += pure_curves(losses)
    if any(each.pld for each, _ in mechanisms):
        curves.append(PldCurve.of(losses))
    curves += _allocation_curves(mechanisms, tight=tight)
    return tuple(curves)


def _selection_curves(parts: tuple[Repeated, ...], adjacency: Adjacency) -> tuple[PrivacyCurve, ...]:
    """Curves of a composition with selections: by Renyi divergences, and from the privacy curve of a trial.

    The second is `BestOf` for a selection by itself, and a composition of pairs otherwise.
    """
    renyi = selection_curve(parts, adjacency)
    match parts:
        case [Repeated(mechanism=RepeatAndSelectDpEvent() as selection, count=1)]:
            return renyi, _best_of(selection, adjacency)
    pairs = [_pairs(part.mechanism, adjacency) for part in parts]
    bounded = tuple(each for each in pairs if each)
    if len(bounded) < len(parts):
        return (renyi,)
    return renyi, PairsCurve(bounded, tuple(part.count for part in parts), BestOf.name)


def _best_of(selection: RepeatAndSelectDpEvent, adjacency: Adjacency) -> BestOf:
    return BestOf(privacy_of(selection.event, adjacency), selection.mean, selection.shape)


def _pairs(mechanism: DpEvent, adjacency: Adjacency) -> tuple[Pair, Pair] | None:
    """The dominating pairs of a mechanism in both directions, or None if it has too little noise."""
    if isinstance(mechanism, RepeatAndSelectDpEvent):
        pair = _pair_of_best(mechanism, adjacency) if _is_hashable(mechanism) else _best_of(mechanism, adjacency).pair()
        return (pair, pair) if pair else None
    views = views_of(mechanism, adjacency)
    view = views.pld or views.plain
    return dominating_pairs(view) if has_enough_noise(view) else None


@lru_cache(maxsize=64)  # a pair takes a second, and a search asks for the same one in each of its guarantees
def _pair_of_best(selection: RepeatAndSelectDpEvent, adjacency: Adjacency) -> ProfilePair | None:
    return _best_of(selection, adjacency).pair()


def _is_hashable(event: DpEvent) -> bool:
    """Whether an event can be a cache key. A composition of a list cannot."""
    try:
        hash(event)
    except TypeError:
        return False
    return True


def _renyi_curve(mechanisms: CountedViews) -> RdpCurve:
    views = [(each.rdp or each.plain, count) for each, count in mechanisms]
    allocated = any(isinstance(view.event, RandomAllocationDpEvent) for view, _ in views)
    return RdpCurve.of(views, ALLOCATION if allocated else "rdp")


def _allocation_curves(mechanisms: CountedViews, *, tight: bool) -> list[PrivacyCurve]:
    """The `tight` bound on random allocation, if nothing else is released."""
    match mechanisms:
        case [
            (
                MechanismViews(
                    rdp=AccountantView(event=RandomAllocationDpEvent(noise_multiplier=multiplier, bins=bins))
                ),
                epochs,
            )
        ]:
            return [TightAllocation(multiplier, bins, epochs)] if tight else []
        case _:
            return []
