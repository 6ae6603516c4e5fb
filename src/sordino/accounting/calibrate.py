"""The smallest noise for a target, rounded to the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable

from dp_accounting.dp_event import DpEvent

from sordino import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.answer import check_delta, privacy_of
from sordino.errors import UsageError

RELATIVE_TOLERANCE = 1e-5


def smallest(
    make_event: Callable[[float], DpEvent],
    adjacency: Adjacency,
    *,
    epsilon: float,
    delta: float,
    low: float = 1e-2,
    high: float = 1e6,
) -> float:
    """The smallest noise multiplier whose event costs at most `epsilon` at `delta`.

    Guarantee: the value returned meets the target itself; the true smallest one is at most 1e-5 (relative) below.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> round(smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=4.377178096, delta=1e-5), 4)
    1.0
    """
    validate.positive(epsilon=epsilon, low=low, high=high)
    check_delta(delta)

    def excess(multiplier: float) -> float:
        return privacy_of(make_event(multiplier), adjacency).epsilon(delta) - epsilon

    if excess(low) <= 0:
        return low
    above = low
    while excess(above := above * 4) > 0:
        if above > 1e15:
            raise UsageError(f"epsilon {epsilon:g} at delta {delta:g} cannot be reached by any noise multiplier.")
    below = above / 4
    while above / below > 1 + RELATIVE_TOLERANCE:
        middle = math.sqrt(below * above)
        below, above = (below, middle) if excess(middle) <= 0 else (middle, above)
    if above > high:
        raise UsageError(
            f"epsilon {epsilon:g} at delta {delta:g} needs a noise multiplier of {above:.3g}, "
            f"which is above the largest allowed, {high:g}."
        )
    return above
