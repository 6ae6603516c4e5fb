import pytest
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from sordino.accounting import RandomAllocationDpEvent
from sordino.accounting.events import Repeated, flatten
from sordino.errors import UnsupportedEvent, UsageError

GAUSSIAN = GaussianDpEvent(1.0)


def test_counts_multiply_through_every_level():
    inner = ComposedDpEvent([SelfComposedDpEvent(GAUSSIAN, 3), PoissonSampledDpEvent(0.5, GAUSSIAN)])
    assert flatten(SelfComposedDpEvent(SelfComposedDpEvent(inner, 5), 7)) == (
        Repeated(GAUSSIAN, 105),
        Repeated(PoissonSampledDpEvent(0.5, GAUSSIAN), 35),
    )


@pytest.mark.parametrize(
    "nothing",
    [
        NoOpDpEvent(),
        ComposedDpEvent([]),
        SelfComposedDpEvent(GAUSSIAN, 0),
        PoissonSampledDpEvent(0.0, GAUSSIAN),
        SampledWithoutReplacementDpEvent(10, 0, GAUSSIAN),
        RandomAllocationDpEvent(1.0, 10, 0),
    ],
)
def test_what_never_happens_leaves_nothing(nothing):
    assert flatten(nothing) == ()


def test_sampling_everybody_is_not_sampling():
    assert flatten(PoissonSampledDpEvent(1.0, GAUSSIAN)) == (Repeated(GAUSSIAN, 1),)


@pytest.mark.parametrize(
    "wrong",
    [
        SelfComposedDpEvent(GAUSSIAN, -1),
        SelfComposedDpEvent(GAUSSIAN, 2.0),
        SelfComposedDpEvent(GAUSSIAN, 10**18),
        PoissonSampledDpEvent(1.5, GAUSSIAN),
        PoissonSampledDpEvent(float("nan"), GAUSSIAN),
        SampledWithoutReplacementDpEvent(10, 11, GAUSSIAN),
        RandomAllocationDpEvent(1.0, 0, 1),
        RandomAllocationDpEvent(1.0, 10, -1),
        "a string",
    ],
)
def test_parameters_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError):
        flatten(wrong)


def test_a_composition_inside_a_sample_is_refused():
    with pytest.raises(UnsupportedEvent, match="composition inside"):
        flatten(PoissonSampledDpEvent(0.1, ComposedDpEvent([GAUSSIAN])))


def test_random_allocation_travels_like_any_other_event():
    event = RandomAllocationDpEvent(2.0, 60, 40)
    assert DpEvent.from_named_tuple(event.to_named_tuple()) == event
