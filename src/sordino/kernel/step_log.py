"""`StepLog` counts the steps that all processes of a run have begun. `RunState` is the state between two of its steps.

Every process draws sampling and noise from a key of its own, which is in its memory only. So no step is repeated under
a key that was used before, and it is enough to count: what a process has begun, in whole periods of the sampler, is one
sequence of releases. The log and the saved state hold step numbers and what was computed from releases. Both may leave,
and neither may be edited: they say what has been spent.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sordino._input import validate
from sordino._input.files import lock, read_bytes, sync_folder
from sordino.errors import StateError, UsageError
from sordino.kernel.encoding import State
from sordino.kernel.step import Plan

_FORMAT = 1
_MOST_BYTES = 1 << 30
_FIELDS = {"format": int, "run": str, "plan": str, "step": int, "spent": int, "seeded": bool, "coding": Mapping}


def identity_of(plan: Plan) -> str:
    """Digest of the stages that decide what a step costs, with the number of steps."""
    return hashlib.blake2b(repr((plan.stages, plan.steps)).encode(), digest_size=16).hexdigest()


def in_whole_periods(first: int, end: int, period: int) -> int:
    """The number of steps in all periods that intersect [first, end): batches are drawn anew once per period.

    >>> in_whole_periods(3, 12, period=1), in_whole_periods(3, 12, period=5), in_whole_periods(10, 10, period=5)
    (9, 15, 0)
    """
    return (-(-end // period) - first // period) * period


@dataclass(frozen=True)
class RunState:
    """The state of a run between two steps: the next `step`, what releases have taught, and what has been `spent`.

    `spent` is the number of steps, in whole periods, that earlier processes and the one that saved this may take
    together. There is no key in it.
    """

    run: str
    plan: str
    step: int
    spent: int
    seeded: bool
    coding: State = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Numbers, strings and tensors only, so that `torch.load` reads it with `weights_only=True`."""
        coding = {name: x.detach().clone() for name, x in self.coding.items()}
        return {"format": _FORMAT, **vars(self), "coding": coding}

    @classmethod
    def of_dict(cls, state: Mapping[str, Any], plan: Plan) -> RunState:
        """Reads a state dict, which must be that of a run of the same plan."""
        validate.instance(Mapping, state=state)
        for name, kind in _FIELDS.items():
            if not isinstance(state.get(name), kind):
                raise StateError(
                    f"state is not the state dict of a PrivateRun: {name} must be {kind.__name__}, got "
                    f"{type(state.get(name)).__name__}."
                )
        if state["format"] != _FORMAT:
            raise StateError(f"the state has format {state['format']}, this version reads {_FORMAT}.")
        if state["plan"] != identity_of(plan):
            raise StateError("the state belongs to a run of another plan: make the run with the plan that it had.")
        if not 0 <= state["step"] <= plan.steps <= state["spent"]:
            raise StateError(f"the state is damaged: step {state['step']} of {plan.steps}, {state['spent']} spent.")
        coding = {str(name): x for name, x in state["coding"].items() if isinstance(x, Tensor)}
        return cls(state["run"], state["plan"], state["step"], state["spent"], state["seeded"], coding)


class StepLog:
    """A file that counts, on the disk and before their noise is drawn, the steps that each process of a run begins.

    Guarantee: when a step's noise is drawn, a line that counts the step has been flushed to the disk. One process at a
    time can hold the file. A line that a crash cut off counts nothing, because its step had not begun.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "steps.log"
    >>> for first in (0, 2):  # the second process repeats step 2
    ...     log = StepLog(path, plan="a digest")
    ...     for step in range(first, first + 3):
    ...         log.count(step)
    ...     log.close()
    >>> StepLog(path, plan="a digest").begun
    ((0, 3), (2, 5))
    """

    def __init__(self, path: Path | str, plan: str, *, seeded: bool = False) -> None:
        validate.instance((str, Path), step_log=path)
        self.path = Path(path)
        is_new = not self.path.exists()
        try:
            self._file = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o666)
        except OSError as error:
            raise UsageError(f"step_log {str(path)!r} cannot be opened: {error.strerror}.") from None
        try:
            if not lock(self._file):
                raise StateError(
                    f"another run takes the steps that {str(path)!r} counts: let its process end, or delete it if "
                    "it is in this one (del run)."
                )
            self.run, self.seeded, self.begun = self._read(plan)
        except BaseException:
            self.close()
            raise
        self._segment: tuple[int, int] | None = None
        if not self.run:
            self.run, self.seeded = secrets.token_hex(16), seeded
            self._write({"format": _FORMAT, "run": self.run, "plan": plan, "seeded": seeded})
            if is_new:
                sync_folder(self.path.parent)

    def spent(self, period: int) -> int:
        """The number of steps that earlier processes have begun, each process counted in whole periods."""
        return sum(in_whole_periods(first, end, period) for first, end in self.begun)

    @property
    def begun_until(self) -> int:
        """No earlier process has begun this step or a later one."""
        return max((end for _, end in self.begun), default=0)

    def check(self, saved: RunState) -> None:
        """Refuses a state of another run, or one that is ahead of the log."""
        if saved.run != self.run or saved.step > self.begun_until:
            raise StateError(
                f"{str(self.path)!r} does not count the steps that led to this state: give the step log of its run."
            )

    def count(self, step: int) -> None:
        """Counts a step of this process. When this returns, the count is on the disk."""
        first = step if self._segment is None else self._segment[0]
        self._write([first, step + 1])
        self._segment = (first, step + 1)

    def close(self) -> None:
        """Lets another process continue."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()

    def _write(self, line: object) -> None:
        content = json.dumps(line).encode() + b"\n"
        if os.write(self._file, content) < len(content):
            raise StateError(f"{str(self.path)!r} could not be written: the disk is full.")
        os.fsync(self._file)

    def _read(self, plan: str) -> tuple[str, bool, tuple[tuple[int, int], ...]]:
        """The name of the run, whether it had a seed, and the steps of each earlier process.

        What a crash cut off is removed.
        """
        content = read_bytes(self.path, at_most=_MOST_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        try:
            header, *lines = [json.loads(line) for line in whole.splitlines()] or [None]
            if header is not None and header["format"] != _FORMAT:
                raise StateError(f"step_log has format {header['format']}, this version reads {_FORMAT}.")
            begun = _segments(lines)
            if header is None:
                header = {"run": "", "plan": plan, "seeded": False}
            run, of_plan, seeded = str(header["run"]), header["plan"], bool(header["seeded"])
        except (ValueError, KeyError, TypeError):
            raise StateError(f"{str(self.path)!r} is not a step log, or it is damaged.") from None
        if of_plan != plan:
            raise StateError(f"{str(self.path)!r} counts the steps of another plan: give another file.")
        if len(whole) < len(content):
            os.ftruncate(self._file, len(whole))
        return run, seeded, begun


def _segments(lines: list[Any]) -> tuple[tuple[int, int], ...]:
    """The steps of each process, from lines that each have the first step of a process and the end of its steps."""
    found: list[tuple[int, int]] = []
    for first, end in lines:
        if not 0 <= first < end:
            raise ValueError
        if found and found[-1] == (first, end - 1):
            found[-1] = (first, end)
        elif end == first + 1:
            found.append((first, end))
        else:
            raise ValueError
    return tuple(found)
