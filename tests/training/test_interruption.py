"""Being asked to stop: whoever heeds it leaves by an exception, and a question that nobody heeded is passed on."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from sordino.errors import Interrupted
from sordino.training.loop import StopRequest, stop_requests

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stopping(asked: StopRequest) -> None:
    if asked.to_stop:
        raise Interrupted("stopped.")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_stopped_nothing_reaches_whoever_is_around_it(number):
    before = [signal.getsignal(each) for each in SIGNALS]
    with pytest.raises(Interrupted), stop_requests() as outer:
        with stop_requests() as inner:
            signal.raise_signal(number)
            assert (inner.to_stop, outer.to_stop) == (True, False)
        stopping(outer)
    assert [signal.getsignal(each) for each in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_stopped_something_is_not_passed_on(number):
    with stop_requests() as outer:
        with suppress(Interrupted), stop_requests() as inner:
            signal.raise_signal(number)
            stopping(inner)
        assert not outer.to_stop


def test_a_second_signal_has_its_usual_effect_at_once():
    with pytest.raises(KeyboardInterrupt), stop_requests() as asked:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        asked.to_stop = False  # not reached
    assert asked.to_stop


def test_without_a_wish_to_be_asked_signals_are_left_alone():
    with pytest.raises(KeyboardInterrupt), stop_requests(wanted=False):
        signal.raise_signal(signal.SIGINT)
