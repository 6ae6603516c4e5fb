"""Being stopped in peace: the first signal lets the step end, the second ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Whether somebody asked to stop.

    >>> with interruption() as asked:
    ...     asked.to_stop
    False
    """

    def __init__(self) -> None:
        self.to_stop = False


@contextmanager
def interruption(wanted: bool = True) -> Iterator[Interruption]:
    """Within, the first Ctrl-C or SIGTERM is noted and the second has its usual effect. Only a main thread is asked.

    A signal that came too late to stop anything is passed on at the end: whoever runs one training after the other was
    asked too.
    """
    asked = Interruption()
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield asked
        return
    usual, noted = {number: signal.getsignal(number) for number in _SIGNALS}, list[int]()

    def note(number: int, frame: FrameType | None) -> None:
        asked.to_stop = True
        noted.append(number)
        for each in _SIGNALS:
            signal.signal(each, usual[each])

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number in _SIGNALS:
            signal.signal(number, usual[number])
    for unheeded in noted:  # what stopped because of it has left with an exception
        signal.raise_signal(unheeded)
