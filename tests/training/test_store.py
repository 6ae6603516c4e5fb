"""The folder of a run: what a kill leaves of it can be told, and what somebody else put there is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from sordino.errors import DataError, StateError
from sordino.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "runs" / "run")


def make_key(folder: RunFolder) -> None:
    folder.private.mkdir(parents=True)
    (folder.private / "key.json").write_text("{}")


def test_a_folder_is_free_while_nothing_is_in_it(folder: RunFolder) -> None:
    assert folder.is_free
    assert folder.make() and not folder.make()
    assert folder.is_free
    (folder.path / ".recipe.toml.x1").write_text("half")
    assert folder.is_free
    (folder.path / "notes.txt").write_text("mine")
    assert not folder.is_free


def test_a_folder_whose_key_is_somewhere_is_not_free(folder: RunFolder) -> None:
    make_key(folder)
    assert not folder.is_free


def test_a_file_and_a_link_to_nowhere_are_not_free(folder: RunFolder) -> None:
    folder.path.parent.mkdir()
    folder.path.symlink_to("nowhere")
    assert not folder.is_free
    folder.path.unlink()
    folder.path.write_text("a file")
    assert not folder.is_free


def test_the_private_folder_lies_beside_the_run_however_it_is_called(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make()
    beside = folder.path.parent / "run.private"
    monkeypatch.chdir(folder.path)
    (folder.path.parent / "latest").symlink_to("run")
    for name in (".", "../run", "../run/", "../latest"):
        assert RunFolder(name).private == beside


def test_a_run_is_finished_when_its_weights_are_there_and_its_key_is_not(folder: RunFolder) -> None:
    folder.write_recipe("")
    assert folder.is_run and not folder.is_begun and not folder.is_finished
    make_key(folder)
    folder.write_privacy({"epsilon": 1.0})
    folder.write_model({"weight": torch.ones(1)})
    assert folder.is_begun and not folder.is_finished
    (folder.private / "key.json").unlink()
    assert folder.is_finished


def test_a_private_folder_without_a_key_is_swept_away_and_one_with_a_key_never(folder: RunFolder) -> None:
    make_key(folder)
    folder.sweep()
    assert folder.private.exists()
    (folder.private / "key.json").unlink()
    folder.sweep()
    assert not folder.private.exists()


def test_clearing_leaves_what_is_not_the_runs(folder: RunFolder) -> None:
    folder.write_recipe("")
    folder.write_facts({}, "schema")
    (folder.path / "notes.txt").write_text("mine")
    folder.clear()
    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]
    (folder.path / "notes.txt").unlink()
    folder.clear()
    assert not folder.path.exists()


def test_tidying_removes_what_was_half_written_and_nothing_else(folder: RunFolder) -> None:
    folder.add_metrics({"step": 1})
    for name in (".metrics.jsonl.a8", ".model.safetensors.b9", ".hidden"):
        (folder.path / name).write_text("half")
    folder.tidy()
    assert {path.name for path in folder.path.iterdir()} == {"metrics.jsonl", ".hidden"}


def test_rows_of_steps_that_will_be_taken_again_are_forgotten(folder: RunFolder) -> None:
    for step in (1, 2, 3):
        folder.add_metrics({"step": step})
    folder.forget_after(2)
    assert folder.metrics() == [{"step": 1}, {"step": 2}]
    folder.forget_after(9)
    assert folder.metrics() == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_a_damaged_state(content: bytes, folder: RunFolder) -> None:
    folder.make()
    for name, read in (("privacy.json", folder.privacy), ("facts.json", folder.facts)):
        (folder.path / name).write_bytes(content)
        with pytest.raises(StateError, match=name):
            read()
    (folder.path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + content + b"\n")
    with pytest.raises(StateError, match=r"metrics\.jsonl"):
        folder.metrics()


def test_a_file_that_is_no_file_is_not_waited_for(folder: RunFolder) -> None:
    folder.make()
    os.mkfifo(folder.path / "recipe.toml")
    os.mkfifo(folder.path / "privacy.json")
    assert not folder.is_run
    with pytest.raises(StateError, match="not a regular file"):
        folder.privacy()


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "run", tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match="cannot be written to"):
            RunFolder(path).make()


def test_what_is_not_finite_is_never_written(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        folder.add_metrics({"loss": float("nan")})
    assert folder.metrics() == []
