"""How much of an experiment is run."""

from __future__ import annotations

from enum import StrEnum


class Scale(StrEnum):
    """`quick` shows in two minutes that everything works, `cpu` reaches the numbers on two cores, `paper` is all of it.

    >>> Scale("quick")
    <Scale.QUICK: 'quick'>
    """

    QUICK = "quick"
    CPU = "cpu"
    PAPER = "paper"
