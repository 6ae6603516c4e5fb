"""What an experiment is made of: entries of a table, each of which is measured once per seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sordino_papers.harness.keys import as_key


@dataclass(frozen=True)
class SideTable:
    """`lines` is a table, its head first. `files` lie in the folder of the experiment."""

    title: str
    lines: tuple[tuple[str, ...], ...]
    files: tuple[Path, ...]

    @classmethod
    def not_measured(cls, title: str) -> SideTable:
        """A side whose measurements are not in the folder yet."""
        return cls(title, (("not measured yet",),), ())


class RunScale(StrEnum):
    """`quick` shows in two minutes that everything works, `cpu` reaches the numbers on two cores, `paper` is all of it.

    >>> RunScale("quick")
    <RunScale.QUICK: 'quick'>
    """

    QUICK = "quick"
    CPU = "cpu"
    PAPER = "paper"


@dataclass(frozen=True)
class Measurement:
    """The outcome of one training: an accuracy in percent, say, and whatever else is worth keeping, as JSON."""

    value: float
    more: Mapping[str, Any] = field(default_factory=dict)


def _nothing(seed: int) -> None:
    """There is nothing to tidy up."""


@dataclass(frozen=True)
class Entry:
    """One line of a table. `settings` is everything that decides it but the seed: a change makes it another line.

    Settings are values that `sordino_papers.harness.keys.as_key` writes as JSON.
    `epsilon` None means that nothing is promised. `chosen` says how the settings were found, and on whose data.
    `forget` is called once what was measured is kept: a training that can be stopped has a folder until then.
    """

    method: str
    data: str
    epsilon: float | None
    adjacency: str | None
    settings: Mapping[str, object]
    measure: Callable[[int], Measurement] = field(compare=False)
    paper: float | None = None
    chosen: str = ""
    forget: Callable[[int], None] = field(default=_nothing, compare=False)

    @property
    def key(self) -> dict[str, Any]:
        """What a kept run must say to be a run of this entry."""
        return {
            "method": self.method,
            "data": self.data,
            "epsilon": self.epsilon,
            "adjacency": self.adjacency,
            "settings": as_key(self.settings),
        }

    @property
    def name(self) -> str:
        return f"{self.method}, {self.data}, epsilon {'none' if self.epsilon is None else f'{self.epsilon:g}'}"


class Experiment(Protocol):
    """A table of a paper and what belongs to it."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        """The lines of the table, in its order."""
        ...

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """More lines, which vary one setting each. None where there is nothing to vary."""
        ...

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        """Draws and writes what goes with the table, from what is kept in the folder. Measures nothing."""
        ...


@runtime_checkable
class HasExtraEntries(Protocol):
    """An experiment with trainings that are no lines of its table, each run once: a side shows what there is of them.

    They are kept in `beside.jsonl` in the folder of the experiment.
    """

    def extra_entries(self, scale: RunScale) -> Sequence[Entry]: ...


@runtime_checkable
class HasMeasuredSides(Protocol):
    """An experiment with sides that take measurements of their own, beyond what the runs of its entries hold.

    `measure_sides` takes them and writes their files. `sides` only reads those files, so that showing a table computes
    nothing.
    """

    def measure_sides(self, scale: RunScale, seeds: int, folder: Path) -> None: ...
