"""An event as privacy.json writes it down, read back. Nothing is run: a name that is no known event is refused."""

from __future__ import annotations

import ast
import math
from numbers import Real

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)

from sordino.accounting import PureDpEvent, RandomAllocationDpEvent
from sordino.accounting.events import HiddenStateDpEvent
from sordino.errors import StateError

_EVENTS: dict[str, type[DpEvent]] = {
    kind.__name__: kind
    for kind in (
        ComposedDpEvent,
        GaussianDpEvent,
        HiddenStateDpEvent,
        LaplaceDpEvent,
        NoOpDpEvent,
        PoissonSampledDpEvent,
        PureDpEvent,
        RandomAllocationDpEvent,
        RepeatAndSelectDpEvent,
        SampledWithoutReplacementDpEvent,
        SelfComposedDpEvent,
        TruncatedSubsampledGaussianDpEvent,
    )
}
_LONGEST = 100_000


def parse_event(text: str, *, what: str) -> DpEvent:
    """The event of which `text` is the `repr`. `what` names it in messages.

    >>> parse_event("SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)", what="the event")
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    >>> parse_event("__import__('os')", what="the event")
    Traceback (most recent call last):
        ...
    sordino.errors.StateError: the event does not describe what was released.
    """
    refusal = StateError(f"{what} does not describe what was released.")
    if len(text) > _LONGEST:
        raise refusal
    try:
        event = _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise refusal from None
    if not isinstance(event, DpEvent):
        raise refusal
    return event


def _value(node: ast.expr) -> object:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if name in _EVENTS:
            return _EVENTS[name](**{str(each.arg): _value(each.value) for each in keywords})
        case ast.List(elts=elements):
            return [_value(element) for element in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(element) for element in elements)
        case ast.Name(id="inf"):
            return math.inf
        case ast.Constant(value=number) if isinstance(number, Real) and not isinstance(number, bool):
            return number
        case _:
            raise ValueError("no event")
