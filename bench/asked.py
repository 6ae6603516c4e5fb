"""Processes that answer questions of a benchmark, with a limit of time for each answer.

A library that is measured may raise anything, print anything, take any time, or use up the memory of the machine. What
went wrong is then a message, and the benchmark goes on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

_ENDED = "the process ended, perhaps out of memory"
T = TypeVar("T")


class NoAnswer(Exception):
    """The process failed, or was not done in time."""


class Asked:
    """The process of `python -m module --worker ...`, as seen by the one that asks, and the times that it told."""

    def __init__(self, module: str, *words: str) -> None:
        self.mode, self.physical, self.times = "", 0, list[float]()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, "--worker", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def ask(self, seconds: float, question: str, *arguments: object) -> Any:
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None and answers is not None
        try:
            requests.write(json.dumps([question, *arguments]).encode() + b"\n")
            requests.flush()
        except BrokenPipeError:
            raise NoAnswer(_ENDED) from None
        if not select.select([answers], [], [], max(seconds, 1.0))[0]:
            self.close()
            raise NoAnswer(f"{question} was not done in {max(seconds, 1.0):.0f} s")
        line = answers.readline()
        if not line:
            raise NoAnswer(_ENDED)
        answer = json.loads(line)
        if "failed" in answer:
            raise NoAnswer(answer["failed"])
        return answer["value"]

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        """Ends the process, and the one that it started to find the size of micro-batches."""
        if not self.has_ended:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def answer_questions(worker: object) -> None:
    """The loop in the process of an `Asked`: a question is the name of a method with its arguments."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        try:
            answer = {"value": getattr(worker, question)(*arguments)}
        except Exception as error:  # its message is the answer
            answer = {"failed": _message(error)}
        print(json.dumps(answer), file=answers, flush=True)


def in_fork(work: Callable[[], T]) -> T:
    """The result of work in a copy of this process, whose memory does not count as that of this process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            sender.send({"value": work()})
        except Exception as error:
            sender.send({"failed": _message(error)})

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        raise NoAnswer(_ENDED) from None
    process.join()
    if "failed" in answer:
        raise NoAnswer(answer["failed"])
    value: T = answer["value"]
    return value


def _message(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return text if isinstance(error, NoAnswer) else f"{type(error).__name__}: {text}"
