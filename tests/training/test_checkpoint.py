"""A checkpoint is of one run, says how far it may have gone, and cannot be made to say less."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sordino._input.safetensors_file import load_tensors, save_tensors
from sordino.errors import StateError, UsageError
from sordino.kernel.randomness import Key
from sordino.training import checkpoint as module
from sordino.training.checkpoint import Checkpoint, Checkpoints, Progress

IDENTITY = {"plan": "poisson", "data": "abc"}
STATE = Checkpoint(Progress(3, 8), {"w": torch.arange(4.0)}, {"numbers": [1, 2.5]}, IDENTITY)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "run.private"
    with Checkpoints.begin(path, Key.from_seed(1)) as checkpoints:
        checkpoints.save(STATE)
    return path


def test_what_was_saved_comes_back_with_its_key(folder: Path) -> None:
    with Checkpoints.open(folder) as checkpoints:
        found = checkpoints.load(IDENTITY)
        assert checkpoints.key(found.progress) == Key.from_seed(1)
    assert found.progress == STATE.progress
    assert found.values == STATE.values
    assert torch.equal(found.tensors["w"], STATE.tensors["w"])


def test_the_folder_is_its_owners_alone(folder: Path) -> None:
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "key.json": 0o600,
        "state.safetensors": 0o600,
        "lock": 0o600,
    }


def test_one_process_at_a_time_works_on_a_run(folder: Path) -> None:
    with Checkpoints.open(folder), pytest.raises(StateError, match="another process"):
        Checkpoints.open(folder)
    code = (
        f"from sordino.training.checkpoint import *; from pathlib import Path; Checkpoints.open(Path({str(folder)!r}))"
    )
    subprocess.run([sys.executable, "-c", code + "; import os; os.kill(os.getpid(), 9)"], check=False)
    Checkpoints.open(folder).close()  # a process that was killed holds nothing


def test_a_second_run_in_the_same_place_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="an unfinished run is there"):
        Checkpoints.begin(folder, Key.fresh())


@pytest.mark.parametrize("name", IDENTITY)
def test_a_checkpoint_of_another_run_is_refused_by_what_differs(folder: Path, name: str) -> None:
    with Checkpoints.open(folder) as checkpoints, pytest.raises(StateError, match=f"its {name} differs"):
        checkpoints.load(IDENTITY | {name: "another"})


def edited(folder: Path, **changes: int) -> None:
    """Changes the progress that a checkpoint claims, as somebody would who wants to spend less."""
    found = load_tensors(folder / "state.safetensors")
    about = json.loads(found.texts["about"])
    about["progress"] |= changes
    save_tensors(folder / "state.safetensors", found.tensors, found.texts | {"about": json.dumps(about)})


@pytest.mark.parametrize("changes", [{"begun_until": 3}, {"step": 0}, {"drawn_again": -5}, {"renewals": 0}])
def test_an_edited_history_is_refused(folder: Path, changes: dict[str, int]) -> None:
    with Checkpoints.open(folder) as checkpoints:
        checkpoints.save(replace(STATE, progress=Progress(3, 8, renewals=1, drawn_again=7)))
        edited(folder, **changes)
        with pytest.raises(StateError, match="was changed after it was written"):
            checkpoints.load(IDENTITY)


def test_edited_weights_are_refused(folder: Path) -> None:
    found = load_tensors(folder / "state.safetensors")
    save_tensors(folder / "state.safetensors", {"w": found.tensors["w"] + 1}, found.texts)
    with Checkpoints.open(folder) as checkpoints, pytest.raises(StateError, match="was changed"):
        checkpoints.load(IDENTITY)


def test_a_history_without_its_seal_is_refused(folder: Path) -> None:
    save_tensors(folder / "state.safetensors", STATE.tensors)
    with Checkpoints.open(folder) as checkpoints, pytest.raises(StateError, match="was changed"):
        checkpoints.load(IDENTITY)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"secret": "ab", "reproducible": true}', b"[1]", b"\xff"])
def test_a_damaged_key_is_refused(folder: Path, content: bytes) -> None:
    (folder / "key.json").write_bytes(content)
    with pytest.raises(StateError, match=r"key in .* is damaged"):
        Checkpoints.open(folder)


def test_a_run_that_never_was_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no unfinished run"):
        Checkpoints.open(tmp_path)


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    here = module.surroundings()
    monkeypatch.setattr(module, "surroundings", lambda *_: here | {"threads": "64"})


def test_steps_that_cannot_be_repeated_exactly_are_not_repeated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    with Checkpoints.open(folder) as checkpoints, pytest.raises(StateError, match=r"threads \d+, here it is 64"):
        checkpoints.load(IDENTITY)


@pytest.mark.parametrize("what", ["_sources", "_processor", "_settings_of_libraries"])
def test_steps_are_not_repeated_by_other_code_or_kernels(
    what: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, what, lambda: "another")
    with Checkpoints.open(folder) as checkpoints, pytest.raises(StateError, match=r"another.*cannot be repeated"):
        checkpoints.load(IDENTITY)


def test_settings_of_libraries_are_those_that_choose_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    before = module.surroundings()
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert module.surroundings() == before
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert module.surroundings() != before


def test_a_changed_source_is_another_sordino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "sums.py").write_text("total = a + b")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "training" / "checkpoint.py"))
    before = module._sources.__wrapped__()
    (tmp_path / "notes.txt").write_text("not code")
    assert module._sources.__wrapped__() == before
    (tmp_path / "inner" / "sums.py").write_text("total = b + a")
    assert module._sources.__wrapped__() != before


def test_the_digest_covers_the_kernel_and_not_its_own_folder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before, read_bytes = module._sources.__wrapped__(), Path.read_bytes
    changed = lambda path: read_bytes(path) + (b" " if path.match("kernel/step.py") else b"")  # noqa: E731
    monkeypatch.setattr(Path, "read_bytes", changed)
    assert module._sources.__wrapped__() != before


def test_steps_are_not_repeated_by_a_model_that_does_something_else(folder: Path) -> None:
    with Checkpoints.open(folder) as checkpoints:
        checkpoints.save(STATE, gradients="one")
        assert checkpoints.load(IDENTITY, gradients="one").progress == STATE.progress
        with pytest.raises(StateError, match="synthetic rows one, here it is other"):
            checkpoints.load(IDENTITY, gradients="other")
        again = checkpoints.load(IDENTITY, gradients="other", draw_again_every=1)
        assert again.progress == Progress(3, 3, renewals=1, drawn_again=5)


def test_steps_are_not_repeated_on_another_device(folder: Path) -> None:
    elsewhere = torch.device("meta")
    with Checkpoints.open(folder) as checkpoints, pytest.raises(StateError, match="device cpu, here it is meta"):
        checkpoints.load(IDENTITY, elsewhere)


def test_steps_are_not_repeated_where_sums_are_in_the_order_of_arrival(folder: Path) -> None:
    parallel = torch.device("meta")
    with Checkpoints.open(folder) as checkpoints:
        checkpoints.save(STATE, parallel)
        with pytest.raises(StateError, match=r"on meta without torch\.use_deterministic_algorithms"):
            checkpoints.load(IDENTITY, parallel)
        torch.use_deterministic_algorithms(True)
        try:
            with pytest.raises(StateError, match="sums in any order, here it is in order"):
                checkpoints.load(IDENTITY, parallel)  # the steps that were begun had no order
            checkpoints.save(STATE, parallel)
            assert checkpoints.load(IDENTITY, parallel).progress == STATE.progress
        finally:
            torch.use_deterministic_algorithms(False)
        assert checkpoints.load(IDENTITY, parallel, draw_again_every=1).progress.renewals == 1


def test_steps_are_not_repeated_with_products_of_another_precision(folder: Path) -> None:
    with Checkpoints.open(folder) as checkpoints:
        torch.set_float32_matmul_precision("medium")
        try:
            with pytest.raises(StateError, match=r"begun with rounded products \{\}"):
                checkpoints.load(IDENTITY)
        finally:
            torch.set_float32_matmul_precision("highest")
        assert checkpoints.load(IDENTITY).progress == STATE.progress


def test_drawing_again_renews_the_key_and_counts_what_may_have_begun(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(monkeypatch)
    with Checkpoints.open(folder) as checkpoints:
        found = checkpoints.load(IDENTITY, draw_again_every=1)
        assert found.progress == Progress(3, 3, renewals=1, drawn_again=5)
        assert checkpoints.key(found.progress) != Key.from_seed(1)
    with Checkpoints.open(folder) as checkpoints:  # once given up, the old key is never used again
        assert checkpoints.load(IDENTITY).progress == found.progress


def test_a_run_that_stopped_in_peace_can_go_on_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints.open(folder) as checkpoints:
        checkpoints.save(replace(STATE, progress=Progress(8, 8)))
        elsewhere(monkeypatch)
        assert checkpoints.load(IDENTITY).progress == Progress(8, 8)


@pytest.mark.parametrize(
    ("step", "begun_until", "period", "again"),
    [(3, 8, 1, 5), (3, 3, 1, 0), (3, 8, 10, 10), (8, 12, 10, 20), (10, 20, 10, 10), (9, 11, 10, 20)],
)
def test_what_counts_again_is_every_period_that_the_old_key_may_have_drawn_in(
    step: int, begun_until: int, period: int, again: int
) -> None:
    assert Progress(step, begun_until).renewed(period).drawn_again == again
    assert Progress(step, begun_until, 2, 100).renewed(period) == Progress(step, step, 3, 100 + again)


def test_renewed_keys_never_repeat() -> None:
    keys = [Key.from_seed(0).renewed(times) for times in range(5)]
    assert len({key.secret for key in keys}) == 5
    assert all(key.reproducible for key in keys)


def test_nothing_of_a_finished_run_remains(folder: Path) -> None:
    with Checkpoints.open(folder) as checkpoints:
        checkpoints.destroy()
    assert not folder.exists()
