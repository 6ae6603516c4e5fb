"""Runs of which only the end is seen: the commands treat them like any other, wherever they are killed."""

from __future__ import annotations

import json
import random
import re
import time
from pathlib import Path

import pytest
from killed_commands import Killed, killed_at, process
from training_commands import FILES, TARGET, answers, contents, finished, last_row
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino.cli import main
from sordino.convex.hidden_run import _Steps
from sordino.data.standard import load_digits
from sordino.training import checkpoint as checkpoint_module
from sordino.training.run_folder import RunFolder

HIDDEN = ["train", "--data", "digits", "--model", "gated-relu", "--method", "noisy-cgd", *TARGET, "--gates", "4"]
HIDDEN += ["--batch-size", "500", "--epochs", "2", "--trailing-steps", "2"]


@pytest.fixture(scope="module")
def hidden(tmp_path_factory) -> Path:
    """A finished run of which only the end is seen."""
    return finished(HIDDEN, tmp_path_factory.mktemp("hidden") / "run")


def test_a_hidden_run_leaves_the_files_of_any_other(hidden: Path, run) -> None:
    assert contents(hidden).keys() == FILES
    assert not RunFolder(hidden).private.exists()
    assert b"\nseed" not in contents(hidden)["recipe.toml"]
    run("train", hidden / "recipe.toml", "--seed", 0, "--quiet", "--out", "by recipe")
    assert contents(Path("by recipe")) == contents(hidden)


def test_a_hidden_run_is_listed_applied_and_described_like_any_other(hidden: Path, run) -> None:
    (row,) = json.loads(run("runs", hidden, "--json"))["rows"]
    accuracy = last_row(hidden)["test_accuracy"]
    assert (row["state"], row["adjacency"], row["test_accuracy"]) == ("finished", "zero-out", accuracy)
    said = answers(run("predict", hidden, "--data", "digits"))
    truth = load_digits().test.target.tolist()
    right = [int(row["prediction"]) == label for row, label in zip(said, truth, strict=True)]
    assert sum(right) / len(right) == pytest.approx(accuracy)
    assert Path(run("report", hidden, "--out", "card").strip()).is_file()
    assert "the final model only" in Path("card/report.html").read_text()


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_a_hidden_run_prints_its_adjacency_beside_its_epsilon(adjacency: str, run) -> None:
    printed = run(*HIDDEN, "--adjacency", adjacency, "--out", "run")
    assert re.search(rf"^epsilon +(2\.9\d+|3\.0+) under {adjacency}$", printed, re.MULTILINE)
    assert f"under {adjacency} adjacency" in printed and "who sees the final model only" in printed


HIDDEN_MOMENTS = (0, 4, 7, 9, 12, 14, 20, 30, 35, 37, 39, 41, 42, 44, 45, 47, 49, 50)


@pytest.mark.parametrize("moment", HIDDEN_MOMENTS)
def test_a_hidden_run_that_is_killed_anywhere_is_resumed_to_what_would_have_been(
    moment: int, hidden: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, resume = [*HIDDEN, "--seed", "0", "--out", "run"], ["train", "--quiet", "--resume", "run"]
    killed_at(moment, begin, monkeypatch)
    killed_at(5, resume if RunFolder("run").is_run else begin, monkeypatch)
    run(*(resume if RunFolder("run").is_run else begin))
    assert contents(Path("run")) == contents(hidden)
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_no_moment_of_a_hidden_run_comes_after_those(monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at(HIDDEN_MOMENTS[-2], [*HIDDEN, "--seed", "0", "--out", "run"], monkeypatch)
    assert not killed_at(HIDDEN_MOMENTS[-1], [*HIDDEN, "--seed", "0", "--out", "other"], monkeypatch)


def test_a_hidden_run_goes_on_elsewhere_for_nothing_and_needs_no_drawing_again(
    run, refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_at(20, [*HIDDEN, "--seed", "0", "--out", "run"], monkeypatch)
    promised = json.loads(Path("run/privacy.json").read_bytes())
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda *_: here | {"torch": "9.9"})
    said = refused("train", "--quiet", "--resume", "run", "--draw-again")
    assert "is not needed with noisy-cgd: its iterates are not released" in said
    run("train", "--quiet", "--resume", "run")
    found = json.loads(Path("run/privacy.json").read_bytes())
    assert found | {"run": None} == promised | {"run": None}  # which says that steps were drawn again, too


def test_elsewhere_no_other_end_is_drawn_beside_one_that_was_measured(
    hidden: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the model is written, and was measured, and the row is not: the end is not computed again."""

    def ending(folder: RunFolder, row: object) -> None:
        raise Killed

    def refuse(*_: object) -> None:
        raise AssertionError("another end")

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_metrics", ending)
        with pytest.raises(Killed):
            main([*HIDDEN, "--seed", "0", "--out", "run"])
    assert Path("run/model.safetensors").exists()
    monkeypatch.setattr(_Steps, "_descend", refuse)
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda *_: here | {"torch": "9.9"})
    run("train", "--quiet", "--resume", "run")
    assert contents(Path("run")) == contents(hidden)


@pytest.mark.slow
def test_a_hidden_run_that_is_killed_at_six_random_moments_ends_as_if_it_had_not_been(run) -> None:
    moments, begin = random.Random(2), [*HIDDEN, "--epochs", "200", "--seed", "5", "--out"]
    state, in_training = Path("run.private/state.safetensors"), 0
    for _ in range(6):
        before = state.stat().st_mtime_ns if state.exists() else 0
        resume = ["train", "--quiet", "--resume", "run"]
        started = process(*(resume if RunFolder("run").is_run else [*begin, "run"]))
        while started.poll() is None:
            if state.exists() and state.stat().st_mtime_ns > before:
                in_training += 1
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        started.kill()
        started.communicate()
    assert in_training >= 4
    run("train", "--quiet", "--resume", "run")
    run(*begin, "whole")
    assert contents(Path("run")) == contents(Path("whole"))
    assert not Path("run.private").exists()
