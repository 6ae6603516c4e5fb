"""Results files: one line of JSON per run, written as soon as it ends, with command, commit and machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sordino._input.files import read_bytes, write_atomically
from sordino._input.strict_json import parse
from sordino.errors import StateError, UsageError
from sordino_papers.harness.entry import Entry, Measurement

_LARGEST = 1 << 26


@dataclass(frozen=True)
class ResultsFile:
    """The file `runs.jsonl` in the folder of an experiment.

    >>> import tempfile
    >>> results = ResultsFile(Path(tempfile.mkdtemp()) / "runs.jsonl")
    >>> entry = Entry("linear", "digits", 1.0, "zero-out", {"lr": 1.0}, lambda seed: Measurement(90.0))
    >>> results.add(entry, seed=0, measured=entry.measure(0), seconds=2.0, origin={})
    >>> [run["value"] for run in results.of(entry)], results.has(entry, seed=1)
    ([90.0], False)
    """

    path: Path

    @classmethod
    def of_extra_entries(cls, folder: Path) -> ResultsFile:
        """The file of the runs of extra entries, which are not lines of the table."""
        return cls(folder / "beside.jsonl")

    def runs(self) -> list[dict[str, Any]]:
        """All runs. A last line that was cut off, because the machine stopped, is ignored."""
        if not self.path.exists():
            return []
        lines = read_bytes(self.path, at_most=_LARGEST).split(b"\n")
        whole = lines[:-1]  # what follows the last line's end is not a line yet
        return [_read(line, place, self.path) for place, line in enumerate(whole, start=1)]

    def of(self, entry: Entry) -> list[dict[str, Any]]:
        """Runs of an entry, by seed. If a seed occurs twice, the later run is used."""
        by_seed = {run["seed"]: run for run in self._matching(entry)}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def has(self, entry: Entry, *, seed: int) -> bool:
        return any(run["seed"] == seed for run in self._matching(entry))

    def add(self, entry: Entry, *, seed: int, measured: Measurement, seconds: float, origin: dict[str, str]) -> None:
        run = entry.key | {"seed": seed, "value": measured.value, "seconds": round(seconds, 1)}
        line = json.dumps(run | {"more": dict(measured.more)} | origin, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._drop_what_was_cut_off()
        with open(self.path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _drop_what_was_cut_off(self) -> None:
        if self.path.exists():
            content = read_bytes(self.path, at_most=_LARGEST)
            os.truncate(self.path, content.rfind(b"\n") + 1)

    def _matching(self, entry: Entry) -> Iterator[dict[str, Any]]:
        key = entry.key
        return (run for run in self.runs() if all(run.get(name) == value for name, value in key.items()))


def _read(line: bytes, place: int, path: Path) -> dict[str, Any]:
    try:
        found = parse(line)
    except UsageError:
        found = None
    if not isinstance(found, dict) or not {"seed", "value", "seconds"} <= set(found):
        raise StateError(f"line {place} of {str(path)!r} is not a run: remove it, and it is run again.")
    return found


_LARGEST = 1 << 26


def origin(command: str) -> dict[str, str]:
    """Command, commit and machine, which every results file records.

    >>> sorted(origin("sordino reproduce hidden-state"))
    ['command', 'commit', 'machine']
    """
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return {"command": command, "commit": _commit(), "machine": machine}


def write_numbers(path: Path, numbers: Mapping[str, Any], command: str) -> None:
    """Writes numbers as JSON, with command, commit and machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps({**numbers, **origin(command)}, indent=2, allow_nan=False) + "\n").encode())


def read_numbers(path: Path) -> dict[str, Any] | None:
    """Reads the JSON file of `write_numbers`, or returns None if there is none."""
    if not path.exists():
        return None
    found = parse(read_bytes(path, at_most=_LARGEST))
    if not isinstance(found, dict):
        raise StateError(f"{str(path)!r} is not a result file: remove it, and it is measured again.")
    return found


def _commit() -> str:
    """The git commit of this code, or the version of the package outside a checkout."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"sordino {version('sordino')}"
    return found.stdout.strip()
