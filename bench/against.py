"""Compares the time of a private step in another checkout of Sordino and in this one, in alternation.

    git worktree add ../before COMMIT
    python -m bench.against ../before --models mlp dp-cnn > results/bench_against.json

Each side runs in a separate process, with the benchmark and the library of its checkout. Noise is timed separately, and
`ratio_without_noise` is the ratio of the remaining times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.models import BENCHMARKS, HALVED
from bench.step import origin

_NOISE = """
import json, torch
from bench.step import noise_milliseconds, _ALL
from sordino.kernel.micro_batches import keep_what_is_freed
keep_what_is_freed()
print(json.dumps(noise_milliseconds(_ALL[{name!r}].make(), 31)))
"""


class Side:
    """A process that runs private steps with the sources of one checkout."""

    def __init__(self, checkout: Path, name: str, batch_size: int) -> None:
        self._checkout, self._name = checkout, name
        work = ["-m", "bench.step", "--worker", "private", name, str(batch_size), "0"]
        command = [sys.executable, "-W", "ignore", *work]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=checkout, env=self._surroundings, **pipes)

    @property
    def _surroundings(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{self._checkout / 'src'}:{self._checkout}"}

    def turn(self) -> list[float]:
        """Milliseconds of some steps."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        times: list[float] = json.loads(self._process.stdout.readline())
        return times

    def noise(self) -> float:
        """Milliseconds for the noise of a step."""
        command = [sys.executable, "-W", "ignore", "-c", _NOISE.format(name=self._name)]
        options: dict[str, Any] = {"check": True, "capture_output": True, "text": True}
        return float(json.loads(subprocess.run(command, cwd=self._checkout, env=self._surroundings, **options).stdout))

    def close(self) -> None:
        self._process.communicate()


def compare(before: Path, name: str, batch_size: int, rounds: int) -> dict[str, Any]:
    """Median milliseconds of both sides, measured in alternation."""
    with ExitStack() as stack:
        sides = [Side(checkout, name, batch_size) for checkout in (before, Path.cwd())]
        for side in sides:
            stack.callback(side.close)
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            for side, found in zip(sides, times, strict=True):
                found += side.turn()
        then, now = (median(found) for found in times)
        noise_then, noise_now = (side.noise() for side in sides)
    return {
        "model": name,
        "batch_size": batch_size,
        "before_ms": then,
        "after_ms": now,
        "noise_before_ms": noise_then,
        "noise_after_ms": noise_now,
        "ratio": now / then,
        "ratio_without_noise": (now - noise_now) / (then - noise_then),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("before", type=Path, help="the other checkout")
    arguments.add_argument("--models", nargs="+", choices=list(BENCHMARKS | HALVED), default=list(BENCHMARKS))
    arguments.add_argument("--batch-size", type=int, default=256)
    arguments.add_argument("--rounds", type=int, default=20)
    chosen = arguments.parse_args()
    before = chosen.before.resolve()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=before, capture_output=True, text=True, check=True).stdout
    rows = [compare(before, name, chosen.batch_size, chosen.rounds) for name in chosen.models]
    made = origin("bench.against") | {"command": "python -m bench.against ../before", "before": commit.strip()}
    print(json.dumps(made | {"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
