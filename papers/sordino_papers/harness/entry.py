"""Experiments and the entries of their tables. Each entry is measured once per seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sordino_papers.harness.keys import as_key


@dataclass(frozen=True)
class SideTable:
    """A small table that is shown below the main one. The first of `lines` is its head; `files` lie in the folder of
    the experiment.
    """

    title: str
    lines: tuple[tuple[str, ...], ...]
    files: tuple[Path, ...]

    @classmethod
    def not_measured(cls, title: str) -> SideTable:
        """A side table whose measurements are not in the folder yet."""
        return cls(title, (("not measured yet",),), ())


class RunScale(StrEnum):
    """Size of an experiment: `quick` is a check of two minutes, `cpu` is meant for two cores, `paper` is the full size.

    >>> RunScale("quick")
    <RunScale.QUICK: 'quick'>
    """

    QUICK = "quick"
    CPU = "cpu"
    PAPER = "paper"


@dataclass(frozen=True)
class Measurement:
    """Result of one training: a number, usually an accuracy in percent, and more values as JSON."""

    value: float
    more: Mapping[str, Any] = field(default_factory=dict)


def _nothing(seed: int) -> None:
    """Does nothing: there is no folder to remove."""


@dataclass(frozen=True)
class Entry:
    """One line of a table. An entry with other `settings` is another entry.

    `settings` holds everything but the seed that decides the measurement, as values that
    `sordino_papers.harness.keys.as_key` can write. `epsilon` None means that there is no guarantee. `chosen` says how
    the settings were selected, and on which data. `forget` is called when the measurement has been saved: it removes
    the folder of a training that can be resumed.
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
        """The fields that identify the runs of this entry in a results file."""
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
    """A table of a paper, with its side tables."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    def entries(self, scale: RunScale) -> Sequence[Entry]:
        """The entries of the table, in order."""
        ...

    def ablation(self, scale: RunScale) -> Sequence[Entry]:
        """Further entries, which vary one setting each. May be empty."""
        ...

    def sides(self, scale: RunScale, seeds: int, folder: Path) -> Sequence[SideTable]:
        """Writes side tables and figures from the files in the folder. Measures nothing."""
        ...


@runtime_checkable
class HasExtraEntries(Protocol):
    """An experiment with trainings that are not lines of its table, run once each and shown in a side table.

    Their runs are kept in `beside.jsonl` in the folder of the experiment.
    """

    def extra_entries(self, scale: RunScale) -> Sequence[Entry]: ...


@runtime_checkable
class HasMeasuredSides(Protocol):
    """An experiment whose side tables need measurements of their own.

    `measure_sides` takes them and writes their files. `sides` only reads those files, so that showing a table computes
    nothing.
    """

    def measure_sides(self, scale: RunScale, seeds: int, folder: Path) -> None: ...
