"""Run folders of an earlier version are read as they were: the same numbers, the same exit codes, the same refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from old_run_folders import EXPECTED, FOLDERS, NAMES, UNFINISHED, copied, fitted, readers, reported

THEN = json.loads(EXPECTED.read_text())
OF_NUMBERS = 1e-7  # how far numbers that are computed again may be from those of another machine
OF_KERNELS = 1e-4  # and those that are computed in float32
SLOW = {
    ("dp-sgd", "attack members"),
    ("noisy-cgd", "effects"),
    *((name, "report") for name in ("sparsified", "table", "tuned", "tuned-repeatedly")),
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Copies of all folders, which a command may change."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(copied(tmp_path))
    yield
    torch.set_num_threads(threads)


def assert_same(found: Any, then: Any, *, at: str, accuracy: float = 0.0, near: float = OF_NUMBERS) -> None:
    """All of it, with numbers to within `near`, and a test accuracy to within `accuracy` if that is more."""
    if isinstance(then, dict):
        assert found.keys() == then.keys(), at
        for name, value in then.items():
            within = max(near, OF_KERNELS if name in ("first", "weights") else accuracy * (name == "test_accuracy"))
            assert_same(found[name], value, at=f"{at}, {name}", accuracy=accuracy, near=within)
    elif isinstance(then, list):
        assert len(found) == len(then), at
        for place, (one, other) in enumerate(zip(found, then, strict=True)):
            assert_same(one, other, at=f"{at}, {place}", accuracy=accuracy, near=near)
    elif isinstance(then, float):
        assert found == pytest.approx(then, rel=near, abs=near), at
    elif isinstance(then, str):
        assert without_surroundings(found) == without_surroundings(then), at
    else:
        assert found == then, at


def without_surroundings(text: str) -> str:
    """Removes the machine and the version from an error message."""
    return re.sub(r"begun with .*, here it is .*: its last", "begun with that, here it is this: its last", text)


def a_case(name: str, what: str) -> Any:
    return pytest.param(name, what, marks=pytest.mark.slow if (name, what) in SLOW else ())


@pytest.mark.usefixtures("quick_verification")
@pytest.mark.parametrize("name, what", [a_case(name, what) for name in NAMES for what in readers(name)])
def test_a_folder_is_read_as_it_was(name: str, what: str) -> None:
    """An unfinished run takes its last steps now, on whatever processor: a few rows of 360 may be told otherwise."""
    accuracy = 0.01 if name in UNFINISHED and what in ("resume", "draw again") else 0.0
    assert_same(readers(name)[what](Path(name)), THEN[name][what], at=f"{name}, {what}", accuracy=accuracy)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("fit")])
def test_a_run_from_python_is_taken_up(name: str) -> None:
    """A finished one is charged again; one that was stopped takes its last steps."""
    assert_same(fitted(name), THEN[name]["fit"], at=name)


def test_a_run_that_was_stopped_ends_as_one_that_was_not() -> None:
    assert_same(fitted("fit-optimized-noise-stopped"), THEN["fit-optimized-noise"]["fit"], at="stopped")


def test_runs_are_compared() -> None:
    assert_same(reported(Path("dp-sgd"), Path("noisy-cgd")), THEN["dp-sgd, noisy-cgd"], at="compared")


def test_a_killed_run_is_refused_by_another_version() -> None:
    said = THEN["killed"]["resume"]["said"]
    assert re.search(r"begun with sordino \S+ \([0-9a-f]{16}\), here it is \S+ \([0-9a-f]{16}\): its last steps", said)
    assert THEN["killed"]["resume"]["code"] == 5


def test_folders_are_small_and_tell_nothing_of_where_they_were_written() -> None:
    for path in FOLDERS.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert len(content) < 100_000, path
            assert not re.search(rb"/(home|root|work|tmp|Users|private/var)/", content), path
