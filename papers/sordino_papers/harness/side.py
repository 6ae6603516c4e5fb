"""What goes with a table: a small table of its own, and the files in which it and its pictures are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Side:
    """`lines` is a table, its head first. `files` lie in the folder of the experiment."""

    title: str
    lines: tuple[tuple[str, ...], ...]
    files: tuple[Path, ...]

    @classmethod
    def not_measured(cls, title: str) -> Side:
        """A side whose measurements are not in the folder yet."""
        return cls(title, (("not measured yet",),), ())
