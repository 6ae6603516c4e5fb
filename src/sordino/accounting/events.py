"""Privacy events: what was released, as values. Three events beside those of `dp_accounting`, and a flat form.

A noise multiplier is (noise standard deviation) / (largest L2 norm that ONE privacy unit adds to a step). For pure
noise it is 1 / (epsilon of a change of this norm). How much a neighbor may change depends on the adjacency, not on the
event: see `accountant_views`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import attr
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from sordino._input import validate
from sordino.errors import UnsupportedEvent, UsageError

MOST_STEPS = 10**9


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(DpEvent):
    """Random allocation (balls in bins): in each epoch, each unit joins exactly one of `bins` Gaussian steps.

    The bin is uniform and independent between units and between epochs.

    >>> RandomAllocationDpEvent(noise_multiplier=2.0, bins=60, epochs=40).bins
    60
    """

    noise_multiplier: float
    bins: int
    epochs: int


@attr.s(frozen=True, slots=True, auto_attribs=True)
class HiddenStateDpEvent(DpEvent):
    """Release of the last iterate of `steps` noisy contractive steps, and of nothing else.

    It reveals no more than one Gaussian release of this multiplier, which `hidden_state` computes. Units have fixed
    places in batches. So it holds if a unit is replaced, by zero or by another one, and not if a unit is removed.

    >>> HiddenStateDpEvent(noise_multiplier=2.0, steps=24_000).steps
    24000
    """

    noise_multiplier: float
    steps: int


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PureDpEvent(DpEvent):
    """One purely private release: one unit makes no outcome more than exp(1 / `noise_multiplier`) times as likely.

    This is for a unit that adds as much as the bound allows, in any direction. The noise may have any distribution.

    >>> PureDpEvent(noise_multiplier=2.0)
    PureDpEvent(noise_multiplier=2.0)
    """

    noise_multiplier: float


@dataclass(frozen=True)
class Repeated:
    """One mechanism that runs `count` times, adaptively: each run may depend on the results of the runs before."""

    mechanism: DpEvent
    count: int


def flatten(event: DpEvent) -> tuple[Repeated, ...]:
    """The mechanisms of a composition, each once, with its count.

    Counts are multiplied in this function alone, so that accountants need not handle nested compositions.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> four = ComposedDpEvent([GaussianDpEvent(2.0), SelfComposedDpEvent(GaussianDpEvent(2.0), 3)])
    >>> flatten(SelfComposedDpEvent(four, 5))
    (Repeated(mechanism=GaussianDpEvent(noise_multiplier=2.0), count=20),)
    """
    counts: Counter[DpEvent] = Counter()
    for mechanism, count in _leaves(event, 1):
        if not _is_a_value(mechanism):
            raise UnsupportedEvent(f"no accountant covers a composition inside {named(mechanism)}.")
        counts[mechanism] += count
    return tuple(Repeated(mechanism, count) for mechanism, count in counts.items())


def _leaves(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    match event:
        case NoOpDpEvent():
            return
        case SelfComposedDpEvent():
            validate.count(count=event.count, at_least=0, at_most=MOST_STEPS)
            if event.count:
                yield from _leaves(event.event, count * int(event.count))
        case ComposedDpEvent():
            for part in event.events:
                yield from _leaves(part, count)
        case PoissonSampledDpEvent():
            validate.between(0, 1, sampling_probability=event.sampling_probability)
            if event.sampling_probability == 1:
                yield from _leaves(event.event, count)
            elif event.sampling_probability > 0:
                yield event, count
        case SampledWithoutReplacementDpEvent():
            validate.count(source_dataset_size=event.source_dataset_size)
            validate.count(sample_size=event.sample_size, at_least=0, at_most=event.source_dataset_size)
            if event.sample_size:
                yield event, count
        case RandomAllocationDpEvent():
            validate.count(bins=event.bins)
            validate.count(epochs=event.epochs, at_least=0, at_most=MOST_STEPS)
            if event.epochs:
                yield attr.evolve(event, epochs=1), count * event.epochs
        case DpEvent():
            yield event, count
        case _:
            raise UsageError(f"event must be a DpEvent, got {validate.described(event)}.")


def named(event: object) -> str:
    """The type of an event and of its inner events, for a message. Field values are left out.

    >>> named(PoissonSampledDpEvent(0.1, SelfComposedDpEvent(NoOpDpEvent(), 3)))
    'PoissonSampledDpEvent(SelfComposedDpEvent(NoOpDpEvent))'
    """
    inner = getattr(event, "event", None)
    return f"{type(event).__name__}({named(inner)})" if isinstance(inner, DpEvent) else type(event).__name__


def _is_a_value(mechanism: DpEvent) -> bool:
    try:
        hash(mechanism)
    except TypeError:
        return False
    return True
