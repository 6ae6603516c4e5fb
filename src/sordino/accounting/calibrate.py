"""Calibration: the smallest noise multiplier for a target epsilon, rounded up; checks of targets and multipliers."""

from __future__ import annotations

import math
from collections.abc import Callable

from dp_accounting.dp_event import DpEvent

from sordino._input import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.pure import is_pure
from sordino.accounting.tightest import check_delta, privacy_of
from sordino.errors import UsageError

RELATIVE_TOLERANCE = 2e-5
HOPELESS = 1e15
WEAKEST_EPSILON = 20.0
SMALLEST_MULTIPLIER, LARGEST_MULTIPLIER = 1e-3, 1e6


def smallest(
    make_event: Callable[[float], DpEvent],
    adjacency: Adjacency,
    *,
    epsilon: float,
    delta: float,
    low: float = 1e-2,
    high: float = 1e6,
) -> float:
    """The smallest noise multiplier whose event has at most `epsilon` at `delta`.

    Guarantee: the returned value meets the target. The exact smallest value is at most 2e-5 (relative) below it.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> round(smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=4.377178096, delta=1e-5), 4)
    1.0
    """
    validate.positive(epsilon=epsilon, low=low, high=high)

    def quick(multiplier: float) -> float:
        return _log_excess(privacy_of(make_event(multiplier), adjacency).quick.epsilon(delta), epsilon)

    def tight(multiplier: float) -> float:
        return _log_excess(privacy_of(make_event(multiplier), adjacency).epsilon(delta), epsilon)

    # The quick bounds are valid, so a multiplier that meets the target by them is enough. The rest is refinement. They
    # may exceed the target by other releases alone, where the tight bound leaves room.
    start = max(low, min(1.0, high))
    enough = _first_to_meet(quick, start) or _first_to_meet(tight, start)
    if enough is None:
        raise UsageError(
            "the target epsilon cannot be met by any amount of noise, because other releases exceed it: "
            "raise epsilon, or use a new budget."
        )
    too_little = enough
    while tight(too_little) <= 0:
        if too_little <= low:
            return low
        enough, too_little = too_little, max(low, too_little / 1.25)
    found = _refined(tight, too_little, enough)
    if found > high:
        raise UsageError(
            f"epsilon {epsilon:g} at delta {delta:g} needs a noise multiplier of {found:.4g}, "
            f"which is above the largest allowed, {high:g}."
        )
    return found


def check_target(epsilon: float, delta: float, *, allow_weak: bool = False, release: DpEvent | None = None) -> None:
    """Refuses targets without a meaning, and weak ones unless `allow_weak`.

    A delta of 0 is accepted if the `release` of each step is pure.
    """
    validate.positive(epsilon=epsilon)
    check_delta(delta, is_pure=release is not None and is_pure(release))
    if epsilon > WEAKEST_EPSILON and not allow_weak:
        raise UsageError(
            f"epsilon must be at most {WEAKEST_EPSILON:g} to be a meaningful guarantee, got {validate.shown(epsilon)}; "
            "pass allow_weak (--allow-weak) to use it anyway."
        )


def check_delta_for(examples: int, delta: float, *, allow_large_delta: bool = False) -> None:
    """Refuses a delta that allows a mechanism which publishes one of the (public) number of examples."""
    if delta >= 1 / examples and not allow_large_delta:
        raise UsageError(
            f"delta must be below 1 / examples = {1 / examples:.2g}, got {validate.shown(delta)}; "
            "pass allow_large_delta (--allow-large-delta) to use it anyway."
        )


def check_multiplier(noise_multiplier: float) -> None:
    """Refuses multipliers so small that nothing is protected, or so large that nothing can be learned."""
    validate.positive(noise_multiplier=noise_multiplier)
    if not SMALLEST_MULTIPLIER <= noise_multiplier <= LARGEST_MULTIPLIER:
        raise UsageError(
            f"noise_multiplier must be in [{SMALLEST_MULTIPLIER:g}, {LARGEST_MULTIPLIER:g}], "
            f"got {validate.shown(noise_multiplier)}."
        )


def _first_to_meet(excess: Callable[[float], float], start: float) -> float | None:
    """A multiplier that meets the target, if any: at most a quarter above the smallest one, or below `start`."""
    above = start
    while excess(above) > 0:
        above *= 4
        if above > HOPELESS:
            return None
    below = above / 4
    while above / below > 1.25:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if excess(middle) <= 0 else (middle, above)
    return above


def _refined(excess: Callable[[float], float], below: float, above: float) -> float:
    """Shrinks the bracket by secant steps in log-log scale, in which epsilon is nearly linear."""
    over, under = excess(below), excess(above)
    while above > below * (1 + RELATIVE_TOLERANCE):
        width = math.log(above / below)
        fraction = over / (over - under) if math.isfinite(over) and over > under else 0.5
        # Steps aim slightly beyond the root, so that both ends of the bracket move towards it in turn.
        margin = min(0.25, RELATIVE_TOLERANCE / (3 * width))
        aim = fraction + (margin if -under > over else -margin)
        guess = below * math.exp(width * min(1 - margin, max(margin, aim)))
        value = excess(guess)
        if value <= 0:
            above, under = guess, value
        else:
            below, over = guess, value
    return above


def _log_excess(epsilon: float, target: float) -> float:
    return math.log(max(epsilon, 1e-300) / target) if math.isfinite(epsilon) else math.inf
