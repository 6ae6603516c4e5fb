"""The repr of an event is parsed back to the same event, and other strings are refused."""

import pytest
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent

from sordino.accounting import PureDpEvent
from sordino.accounting.events import flatten
from sordino.errors import StateError
from sordino.recipes.planning import Question, SamplerName, make_sampler
from sordino.report.evidence import parse_event


@pytest.mark.parametrize("sampler", SamplerName)
def test_the_event_of_every_sampler_is_read_back_as_it_was(sampler):
    composed = make_sampler(Question(1000, 100, steps=30, sampler=sampler)).compose(GaussianDpEvent(1.5), 30)
    event = ComposedDpEvent([composed, GaussianDpEvent(10.0), PureDpEvent(4.0)])
    assert flatten(parse_event(repr(event), what="the event")) == flatten(event)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        "GaussianDpEvent",
        "GaussianDpEvent(1.0)",
        "GaussianDpEvent(noise_multiplier=True)",
        "GaussianDpEvent(noise_multiplier='1')",
        "GaussianDpEvent(noise_multiplier=1.0, other=2.0)",
        "GaussianDpEvent(**{'noise_multiplier': 1.0})",
        "GaussianDpEvent(noise_multiplier=1.0); 5",
        "__import__('os').system('true')",
        "DpEvent()",
        "ZCDpEvent(rho=0.1)",
        "(lambda: 5)()",
        "SelfComposedDpEvent(event=" * 3000 + "NoOpDpEvent()" + ", count=1)" * 3000,
        "(" * 3000,
        "\0",
        "NoOpDpEvent()" + " " * 200_000,
    ],
)
def test_what_is_no_event_is_refused_in_one_line(text):
    with pytest.raises(StateError, match=r"^the event does not describe what was released\.$"):
        parse_event(text, what="the event")
