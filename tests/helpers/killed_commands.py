"""Commands that are killed while they run, in this process or in a separate one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module

import pytest

from sordino.cli import main
from sordino.training.loop import Training


class Killed(BaseException):
    """Simulates the end of a process: nothing runs after it, and the system releases its locks."""


def ending_after(calls: int):
    """Wraps functions so that only the first `calls` calls of all of them together complete."""
    remaining = calls

    def ending(original):
        def call(*positional, **named):
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise Killed
            return original(*positional, **named)

        return call

    return ending


def killed_at(moment: int, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a command that is killed after `moment` operations that may leave something half done."""
    ending = ending_after(moment)
    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (Training, "step")):
            patch.setattr(owner, name, ending(getattr(owner, name)))
        patch.setattr(import_module("sordino.recipes.run"), "_take_back", lambda folder: None)
        try:
            main([str(argument) for argument in arguments])
        except Killed:
            return True
        except SystemExit as ended:
            assert ended.code == 0
            return False
    raise AssertionError("the command did not end")


PROCESS = """
from sordino.training import run_writer
from sordino.cli import main
run_writer._EVALUATIONS = 2
main()
"""


def process(*arguments: object) -> subprocess.Popen[str]:
    """Starts the command in a separate process, with as few rows and threads as `quick` uses."""
    command = [sys.executable, "-c", PROCESS, *map(str, arguments)]
    pipe, surroundings = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=surroundings)
