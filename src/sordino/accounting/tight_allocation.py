"""The numerical bound for random allocation of the optional package `PLD_accounting`, which takes minutes per answer.

`allocation_pair` is as tight and takes less than a second; this one shares no line with it.

Answers are kept in the user's cache directory, one small JSON file each.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sordino.errors import UsageError

FORMAT = 1


@dataclass(frozen=True)
class TightAllocation:
    """Random allocation over `epochs` epochs. It answers epsilons; a delta it does not prove (1)."""

    multiplier: float
    bins: int
    epochs: int
    name: str = "random-allocation-tight"

    def epsilon(self, delta: float) -> float:
        question = {**asdict(self), "delta": delta, "format": FORMAT, "PLD_accounting": _version()}
        known = recall(question)
        if known is not None:
            return known
        from PLD_accounting import gaussian_allocation_epsilon_range

        upper, _lower = gaussian_allocation_epsilon_range(
            delta=delta, sigma=self.multiplier, num_steps=self.bins, num_epochs=self.epochs
        )
        answer = max(0.0, float(upper)) if not math.isnan(upper) else math.inf
        remember(question, answer)
        return answer

    def delta(self, epsilon: float) -> float:
        return 1.0


def recall(question: dict[str, object]) -> float | None:
    """The answer on file, or nothing. A file that does not hold this very question is ignored."""
    try:
        stored = json.loads(_file(question).read_text())
        answer = float(stored["epsilon"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if stored.get("question") == question and answer >= 0 else None


def remember(question: dict[str, object], epsilon: float) -> None:
    """Writes the answer so that a reader sees all of it or nothing."""
    path = _file(question)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({"question": question, "epsilon": epsilon}, file)
    os.replace(file.name, path)


def _file(question: dict[str, object]) -> Path:
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
    return cache_directory() / f"{name}.json"


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/sordino/random-allocation`, or the same under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sordino" / "random-allocation"


def _version() -> str:
    try:
        return version("PLD_accounting")
    except PackageNotFoundError as missing:
        raise UsageError(
            "a tight epsilon for random allocation needs the package PLD_accounting: pip install 'sordino[tight]'."
        ) from missing
