"""A shown iterate is the same in every repetition, even if the process is killed and resumes on other hardware."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sordino as so
from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.convex import NoisyCGD, fit_hidden_state
from sordino.convex.hidden_run import _Steps
from sordino.convex.model import GatedReLU
from sordino.errors import StateError
from sordino.training import checkpoint
from sordino.training.run_folder import RunFolder
from sordino.training.run_writer import RunWriter

GENERATOR = torch.Generator().manual_seed(0)
DATA = torch.randn(42, 5, generator=GENERATOR), torch.randint(0, 3, (42,), generator=GENERATOR)
SHOWN = (1, 2, 4)
PLAN = NoisyCGD(
    so.Cyclic(4, 5),
    GatedReLU(6),
    clip=0.3,
    noise_multiplier=3.0,
    learning_rate=1.0,
    strength=0.05,
    trailing_steps=3,
    shown_after=SHOWN,
)
Shown = list[tuple[int, Tensor]]

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """Limits torch to one thread, because a forked process loses the other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fitted(out: Path | None, on_shown: Callable[[int, dict[str, Tensor]], None], **changes: Any) -> Any:
    arguments = {"outputs": 3, "delta": 1e-3, "seed": 5, "progress": False, "resume": out is not None}
    return fit_hidden_state(PLAN, DATA, out=out, on_shown=on_shown, **(arguments | changes))


def writing_to(seen: Path) -> Callable[[int, dict[str, Tensor]], None]:
    """Writes each shown iterate to a file of its own, numbered in the order in which they were shown."""

    def on_shown(epoch: int, weights: dict[str, Tensor]) -> None:
        number = len(list(seen.iterdir()))
        save_tensors(seen / f"{number:03} {epoch}", {"weights": weights["maps.weight"]})

    return on_shown


def seen_in(seen: Path) -> Shown:
    paths = sorted(seen.iterdir())
    return [(int(path.name.split()[1]), load_tensors(path).tensors["weights"]) for path in paths]


def in_a_process_of_its_own(work: Callable[[], object]) -> int:
    """Runs `work` in a forked process. Returns 0, or the signal that killed it."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def dying_after(owner: Any, name: str, calls: int) -> None:
    """Kills the process after this many calls of a function."""
    original, count = getattr(owner, name), 0

    def call(*positional: Any, **named: Any) -> Any:
        nonlocal count
        result = original(*positional, **named)
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, call)


def elsewhere(number: int) -> None:
    here = checkpoint.surroundings()
    checkpoint.surroundings = lambda *_: here | {"torch": f"9.{number}"}


def killed_on_the_way(out: Path, seen: Path, moments: list[tuple[Any, str, int]]) -> None:
    """Starts a run, kills it at each moment in turn, and resumes it on other hardware each time."""
    for number, moment in enumerate([*moments, None]):

        def work(number: int = number, moment: tuple[Any, str, int] | None = moment) -> None:
            elsewhere(number)
            if moment is not None:
                dying_after(*moment)
            fitted(out, writing_to(seen))

        assert in_a_process_of_its_own(work) == (0 if moment is None else signal.SIGKILL)


def as_once(found: Shown) -> dict[int, Tensor]:
    """The shown iterate of each epoch, after checking that all repetitions are equal bit for bit."""
    once: dict[int, Tensor] = {}
    for epoch, weights in found:
        assert torch.equal(once.setdefault(epoch, weights), weights), f"two iterates were shown after epoch {epoch}"
    return once


MOMENTS: dict[str, list[tuple[Any, str, int]]] = {
    "before it is recorded": [(RunWriter, "at_rest", 2)],
    "between the record and the showing": [(RunFolder, "add_shown", 2)],
    "when it has been shown": [(_Steps, "_show", 9)],  # called once before the first step, and once after each step
    "in the next step": [(_Steps, "_descend", 9)],
    "again and again": [(RunFolder, "add_shown", 1), (_Steps, "_descend", 5), (RunFolder, "add_shown", 1)],
    "when the end is decided": [(RunWriter, "decide", 1)],
    "when the end was measured": [(RunFolder, "add_metrics", 1)],
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_iterate_is_shown_twice_with_different_noise(moment: str, tmp_path: Path) -> None:
    out, seen = tmp_path / "run", tmp_path / "seen"
    seen.mkdir()
    killed_on_the_way(out, seen, MOMENTS[moment])
    assert tuple(as_once(seen_in(seen))) == SHOWN
    assert json.loads((out / "shown.json").read_bytes()).keys() == {str(epoch) for epoch in SHOWN}
    assert RunFolder(out).is_finished


def test_what_is_killed_and_resumed_on_one_machine_shows_what_would_have_been_shown(tmp_path: Path) -> None:
    whole: Shown = []
    end = fitted(None, lambda epoch, weights: whole.append((epoch, weights["maps.weight"])))
    out, seen = tmp_path / "run", tmp_path / "seen"
    seen.mkdir()

    def work() -> None:
        dying_after(RunFolder, "add_shown", 2)
        fitted(out, writing_to(seen))

    assert in_a_process_of_its_own(work) == signal.SIGKILL
    found = fitted(out, writing_to(seen))
    assert [epoch for epoch, _ in seen_in(seen)] == [1, 2, 4]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(whole, seen_in(seen), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(found.model.parameters(), end.model.parameters(), strict=True))


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_an_older_private_folder_shows_nothing_new(is_elsewhere: bool, tmp_path: Path) -> None:
    """A copy of the folder from before epoch 2 is restored after epoch 2 was shown."""
    out, seen, copy = tmp_path / "run", tmp_path / "seen", tmp_path / "copy"
    seen.mkdir()

    def until_first() -> None:
        dying_after(_Steps, "_descend", 6)
        fitted(out, writing_to(seen))

    def until_second() -> None:
        dying_after(_Steps, "_descend", 4)
        fitted(out, writing_to(seen))

    assert in_a_process_of_its_own(until_first) == signal.SIGKILL
    private = RunFolder(out).private
    shutil.copytree(private, copy)
    assert in_a_process_of_its_own(until_second) == signal.SIGKILL
    assert sorted(as_once(seen_in(seen))) == [1, 2]
    shutil.rmtree(private)
    copy.rename(private)
    if not is_elsewhere:  # the repeated step is equal bit for bit
        fitted(out, writing_to(seen))
        assert sorted(as_once(seen_in(seen))) == [1, 2, 4]
        return
    here = checkpoint.surroundings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "surroundings", lambda *_: here | {"torch": "9.9"})
        with pytest.raises(StateError, match="other weights were released after epoch 2 of this run"):
            fitted(out, writing_to(seen))
    assert [epoch for epoch, _ in seen_in(seen)] == [1, 2]


def test_an_older_private_folder_ends_in_no_other_weights(tmp_path: Path) -> None:
    out, seen, copy = tmp_path / "run", tmp_path / "seen", tmp_path / "copy"
    seen.mkdir()

    def until_first() -> None:
        dying_after(_Steps, "_descend", 6)
        fitted(out, writing_to(seen))

    assert in_a_process_of_its_own(until_first) == signal.SIGKILL
    shutil.copytree(RunFolder(out).private, copy)
    end = fitted(out, writing_to(seen))
    released = (out / "model.safetensors").read_bytes()
    copy.rename(RunFolder(out).private)
    here = checkpoint.surroundings()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "surroundings", lambda *_: here | {"torch": "9.9"})
        again = fitted(out, writing_to(seen))
    assert (out / "model.safetensors").read_bytes() == released and again.metrics == end.metrics
    assert tuple(as_once(seen_in(seen))) == SHOWN
    assert not RunFolder(out).private.exists()


def test_a_run_that_was_begun_before_iterates_were_recorded_is_not_gone_on_with(tmp_path: Path) -> None:
    out, seen = tmp_path / "run", tmp_path / "seen"
    seen.mkdir()

    def as_before() -> None:
        honest = RunWriter.last_checkpoint

        def last_checkpoint(self: Any, plan: Any, model: Any, records: Any, settings: Any, **named: Any) -> Any:
            return honest(self, plan, model, records, {k: v for k, v in settings.items() if k != "shown"}, **named)

        RunWriter.last_checkpoint = last_checkpoint
        dying_after(_Steps, "_descend", 6)
        fitted(out, writing_to(seen))

    assert in_a_process_of_its_own(as_before) == signal.SIGKILL
    with pytest.raises(StateError, match="its shown differs"):
        fitted(out, writing_to(seen))
