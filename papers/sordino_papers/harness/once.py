"""Measures what a ledger does not have yet, and keeps it at once."""

from __future__ import annotations

import time

from sordino_papers.harness.entry import Entry
from sordino_papers.harness.ledger import Ledger
from sordino_papers.harness.origin import origin


def measured_once(entry: Entry, ledger: Ledger, *, seed: int, command: str) -> None:
    """Measures an entry with a seed, unless the ledger has it. `command` is what asked for it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from sordino_papers.harness.entry import Measured
    >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "runs.jsonl")
    >>> entry = Entry("linear", "digits", 1.0, "zero-out", {}, lambda seed: print("measuring") or Measured(90.0))
    >>> for _ in range(2):
    ...     measured_once(entry, ledger, seed=0, command="sordino reproduce")
    measuring
    """
    if ledger.has(entry, seed=seed):
        return
    begun = time.monotonic()
    measured = entry.measure(seed)
    ledger.add(entry, seed=seed, measured=measured, seconds=time.monotonic() - begun, origin=origin(command))
    entry.forget(seed)
