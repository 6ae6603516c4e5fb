"""Sides of a benchmark: each runs in processes of its own, and the sides take turns.

In a common process, memory that the other side leaves in the heap would change the number of page faults, and a library
could change what the others run.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

FEWEST = 3
_SECONDS, _SECONDS_AT_LEAST, _SECONDS_OF_A_TURN = 40.0, 4.0, 0.5
# Micro-batch sizes whose times differ by no more than this are equally good: the largest of them is used.
TIE = 0.05
Turn = Callable[[], list[float]]


class Stepper:
    """A separate process for one side, which runs steps on request."""

    def __init__(self, module: str, *work: str) -> None:
        self._process = subprocess.Popen(
            _worker(module, *work), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def turn(self) -> list[float]:
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None
        requests.write("turn\n")
        requests.flush()
        times: list[float] = json.loads(answers.readline())
        return times

    def close(self) -> None:
        self._process.communicate()


def take_turns(step: Callable[[], object]) -> None:
    """The loop in the process of a `Stepper`."""
    for _ in sys.stdin:
        print(json.dumps(turn(step)), flush=True)


def in_process(module: str, *work: str) -> Any:
    """What `python -m module --worker ...` prints last, as JSON."""
    run = subprocess.run(_worker(module, *work), check=True, capture_output=True, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def _worker(module: str, *work: str) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", module, "--worker", *work]


def alternating(sides: Sequence[Turn], repeats: int) -> list[float]:
    """Median milliseconds of alternating steps, with at least `repeats` repetitions (see `_again`)."""
    start, rounds, times = time.perf_counter(), 0, [list[float]() for _ in sides]
    while _again(rounds, repeats, start):
        for side, taken in zip(sides, times, strict=True):
            taken += side()
        rounds += 1
    return [median(taken) for taken in times]


def turn(step: Callable[[], object]) -> list[float]:
    """Milliseconds of consecutive steps, so that caches and the heap are as in training.

    Runs as many steps as fit into half a second, after some warm-up steps; one of each for long steps.
    """
    _steps(step, _SECONDS_OF_A_TURN / 4)
    return _steps(step, _SECONDS_OF_A_TURN)


def _steps(step: Callable[[], object], seconds: float) -> list[float]:
    start, times = time.perf_counter(), list[float]()
    while not times or time.perf_counter() - start < seconds:
        times.append(_once(step))
    return times


def _again(done: int, repeats: int, start: float) -> bool:
    """Whether to repeat: short steps are timed for some seconds, because the machine may be slow for one."""
    passed = time.perf_counter() - start
    return done < FEWEST or passed < _SECONDS_AT_LEAST or (done < repeats and passed < _SECONDS)


def milliseconds(step: Callable[[], object], repeats: int) -> float:
    """The median time of a call, after a warm-up call."""
    step()
    return median(_once(step) for _ in range(repeats))


def peak_mib(make_step: Callable[[], Callable[[], object]]) -> float:
    """The increase of peak resident memory by two steps, in MiB."""
    before = _peak()
    step = make_step()
    step()
    step()
    return _peak() - before


def _once(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return 1e3 * (time.perf_counter() - start)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
