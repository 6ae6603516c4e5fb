"""An attack: from a gradient, and what everybody knows, to the picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from sordino.attacks.reconstruction.known import Known
from sordino.attacks.reconstruction.observed import Observed
from sordino.kernel.randomness import Stream

Tick = Callable[[], None]


def unwatched() -> None:
    """Nobody is told of progress."""


@runtime_checkable
class Attack(Protocol):
    """It is given what was observed and what is known, and never the picture or its label."""

    @property
    def ticks(self) -> int:
        """How often an attack on one picture reports progress."""
        ...

    def check(self, known: Known) -> None:
        """Refuses a network that it has no answer for."""
        ...

    def reconstruct(self, known: Known, observed: Observed, randomness: Stream, tick: Tick = unwatched) -> Tensor:
        """The picture, shape (1, channels, height, width), pixels from 0 to 1."""
        ...
