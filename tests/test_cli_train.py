"""The training commands from end to end: train, resume, runs, predict, with every kind of data."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sordino import checkpoint as checkpoint_module
from sordino import journal as journal_module
from sordino.checkpoint import Checkpoints
from sordino.cli import main
from sordino.data.digits import load_digits
from sordino.data.standard import NAMES
from sordino.randomness import Key
from sordino.recipes import names
from sordino.store import RunFolder
from sordino.tensors import load_tensors, save_tensors
from sordino.training import Training

TARGET = ["--epsilon", "3", "--delta", "1e-4", "--quiet"]
DIGITS = ["train", "--data", "digits", "--model", "linear", *TARGET, "--batch-size", "100", "--steps", "4"]
FILES = {"recipe.toml", "facts.json", "metrics.jsonl", "model.safetensors", "privacy.json"}


class Killed(BaseException):
    """Stands for the end of a process: nothing after it runs, and the system lets its locks go."""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """One thread and few rows on the way: what is tested here is what commands do, not what they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "_MARKS", 2)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A finished run on digits with a seed. Tests that change it take a copy."""
    out = tmp_path_factory.mktemp("digits") / "run"
    with pytest.raises(SystemExit) as ended:
        main([*DIGITS, "--seed", "0", "--out", str(out)])
    assert ended.value.code == 0
    return out


@pytest.fixture
def copied(digits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits, tmp_path / "copied"))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def last_row(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def answers(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


# Training on digits


def test_a_run_leaves_recipe_facts_measures_model_and_promise_and_nothing_else(digits: Path) -> None:
    assert contents(digits).keys() == FILES
    assert not RunFolder(digits).private.exists()
    assert 0.2 < last_row(digits)["test_accuracy"] <= 1
    assert all("test_accuracy" not in line for line in (digits / "metrics.jsonl").read_text().splitlines()[:-1])


def test_a_promise_has_the_fields_of_a_plan(digits: Path, run) -> None:
    promised = json.loads((digits / "privacy.json").read_text())
    sizes = ["--examples", promised["examples"], "--batch-size", 100, "--steps", 4]
    planned = json.loads(run("plan", *sizes, "--epsilon", 3, "--delta", "1e-4", "--json"))
    assert promised.keys() == planned.keys()
    assert 2.9 < promised["epsilon"] <= 3
    assert promised["noise_multiplier"] == pytest.approx(planned["noise_multiplier"], rel=1e-3)
    same = ("examples", "batch_size", "sample_rate", "epochs", "steps", "delta", "sampler", "adjacency", "unit")
    assert {name: promised[name] for name in same} == {name: planned[name] for name in same}


def test_the_same_seed_gives_the_same_folder_and_so_does_its_recipe(digits: Path, run) -> None:
    run(*DIGITS, "--seed", 0, "--out", "again")
    assert contents(Path("again")) == contents(digits)
    run("train", digits / "recipe.toml", "--seed", 0, "--quiet", "--out", "by recipe")
    assert contents(Path("by recipe")) == contents(digits)
    run("train", digits / "recipe.toml", "--seed", 1, "--quiet", "--out", "another")
    assert contents(Path("another"))["model.safetensors"] != contents(digits)["model.safetensors"]


def test_what_is_printed_can_be_signed(digits: Path, run) -> None:
    printed = run("train", "--resume", digits)
    promised = json.loads((digits / "privacy.json").read_text())
    shown, adjacency = re.search(r"^epsilon +([\d.]+) under (\S+)$", printed, re.MULTILINE).groups()
    assert promised["epsilon"] <= float(shown) <= promised["epsilon"] * 1.0001
    assert adjacency == "zero-out"
    assert f"test accuracy  {last_row(digits)['test_accuracy']:.4f}" in printed
    assert printed.splitlines()[-1] == promised["statement"]
    assert "the seed stays secret" in promised["statement"]


def test_without_a_seed_runs_differ_and_say_nothing_of_one(run) -> None:
    for _ in range(2):
        assert "seed" not in run(*DIGITS, "--steps", 1)
    one, other = (contents(Path("runs") / f"digits-linear-{number}") for number in (1, 2))
    assert b"\nseed" not in one["recipe.toml"]
    assert one["model.safetensors"] != other["model.safetensors"]


def test_runs_are_named_by_data_and_model_and_counted(run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("runs/digits-linear-1").mkdir(parents=True)
    Path("runs/digits-linear-2.private").mkdir()
    assert "runs/digits-linear-3" in run(*DIGITS, "--steps", 1)


def test_an_occupied_folder_is_refused_and_left_as_it_is(digits: Path, refused) -> None:
    before = contents(digits)
    assert "is not empty" in refused(*DIGITS, "--out", digits)
    assert contents(digits) == before
    Path("file").write_text("mine")
    assert "is not empty" in refused(*DIGITS, "--out", "file")
    assert "is not empty" in refused(*DIGITS, "--out", ".")
    assert "cannot be written to" in refused(*DIGITS, "--out", "file/run", code=3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--data", "diigts"], 2),
        (["--data", "none.csv", "--schema", "none.toml"], 3),
        (["--data", "./nowhere"], 3),
        (["--model", "h-cnn"], 2),
        (["--batch-size", "100000"], 2),
        (["--delta", "0.5"], 2),
        (["--augment", "crop:8"], 2),
    ],
)
@pytest.mark.parametrize("out", [[], ["--out", "out"]])
def test_a_run_that_cannot_begin_leaves_no_folder(options: list[str], code: int, out: list[str], refused) -> None:
    refused(*DIGITS, *out, "--tensorboard", *options, code=code)
    assert [path for path in Path().rglob("*") if path.name != "runs"] == []


def test_a_training_that_diverges_keeps_its_promise(refused) -> None:
    assert "smaller learning rate" in refused(*DIGITS, "--lr", "1e38", "--clip", "1e4", "--out", "out")
    assert RunFolder("out").is_begun


def test_a_second_process_does_not_take_back_what_the_first_began(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints.begin(Path("out.private").absolute(), Key.from_seed(0)):
        monkeypatch.setattr(RunFolder, "is_free", True)  # as it was when the second one looked
        assert "holds a run already" in refused(*DIGITS, "--out", "out")
    assert Path("out.private/key.json").exists() and Path("out/recipe.toml").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--optimizer", "adam", "--lr", "0.01", "--schedule", "cosine:0.1", "--averaging", "ema:0.9"],
        ["--sampler", "shuffled", "--model", "mlp", "--views", "2", "--augment", "jitter:0.1"],
        [
            "--sampler",
            "cyclic",
            "--adjacency",
            "replace-one",
            "--weight-decay",
            "0.01",
            "--momentum",
            "0",
            "--physical-batch-size",
            "32",
        ],
    ],
)
def test_every_option_reaches_the_recipe(options: list[str], run) -> None:
    run(*DIGITS, *options, "--seed", 0, "--out", "out")
    recipe = Path("out/recipe.toml").read_text()
    for name, value in zip(options[::2], options[1::2], strict=True):
        assert re.search(rf'^{name[2:].replace("-", "_")} = "?{re.escape(value)}(\.0)?"?$', recipe, re.MULTILINE)


# Resuming


def killed_at(moment: int, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Runs a command that ends after so many of the moments in which something may be half done."""
    remaining = moment

    def ending(original):
        def call(*positional, **named):
            nonlocal remaining
            remaining -= 1
            if remaining < 0:
                raise Killed
            return original(*positional, **named)

        return call

    with monkeypatch.context() as patch:
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (Training, "step")):
            patch.setattr(owner, name, ending(getattr(owner, name)))
        patch.setattr(sys.modules["sordino.recipes.carry_out"], "_take_back", lambda folder: None)
        try:
            main([str(argument) for argument in arguments])
        except Killed:
            return True
        except SystemExit as ended:
            assert ended.code == 0
            return False
    raise AssertionError("the command did not end")


MOMENTS = (0, 2, 4, 6, 7, 9, 11, 16, 25, 33, 36, 37, 38, 39, 40, 41, 44)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_command_that_is_killed_anywhere_is_resumed_to_what_would_have_been(
    moment: int, digits: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = [*DIGITS, "--seed", "0", "--out", "run"]
    was_killed = killed_at(moment, begin, monkeypatch)
    assert was_killed or moment >= 40
    resume = ["train", "--quiet", "--resume", "run"]
    killed_at(5, resume if RunFolder("run").is_run else begin, monkeypatch)
    run(*(resume if RunFolder("run").is_run else begin))
    assert contents(Path("run")) == contents(digits)
    assert [path.name for path in Path().iterdir()] == ["run"]


def test_no_moment_comes_after_those(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not killed_at(MOMENTS[-1], [*DIGITS, "--seed", "0", "--out", "run"], monkeypatch)


def test_resuming_a_finished_run_prints_its_result_again_without_its_data(run) -> None:
    table(Path("people.csv"), Path("people.toml"))
    printed = run(*PEOPLE, "--out", "run")
    Path("people.csv").unlink()
    before = contents(Path("run"))
    assert run("train", "--resume", "run") == printed
    assert contents(Path("run")) == before


def test_steps_drawn_again_are_paid_for_and_stay_in_what_is_printed(
    run, refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_at(25, [*DIGITS, "--seed", "0", "--out", "run"], monkeypatch)
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda: here | {"torch": "9.9"})
    assert "at the price of a larger epsilon" in refused("train", "--quiet", "--resume", "run", code=5)
    printed = run("train", "--quiet", "--resume", "run", "--draw-again")
    epsilon = json.loads(Path("run/privacy.json").read_text())["epsilon"]
    assert epsilon > 3.01
    assert epsilon <= float(re.search(r"^epsilon +([\d.]+) under", printed, re.MULTILINE)[1])
    assert run("train", "--resume", "run") == printed


@pytest.mark.parametrize(
    "option", [["--epsilon", "1"], ["--seed", "0"], ["--out", "x"], ["recipe.toml"], ["--lr", "1"]]
)
def test_a_run_is_resumed_by_its_own_recipe_only(option: list[str], digits: Path, refused) -> None:
    assert "give nothing but --resume" in refused("train", "--resume", digits, *option)


def test_a_run_whose_recipe_was_changed_is_not_resumed(monkeypatch: pytest.MonkeyPatch, refused) -> None:
    assert killed_at(25, [*DIGITS, "--seed", "0", "--out", "run"], monkeypatch)
    recipe = Path("run/recipe.toml")
    whole = recipe.read_text()
    recipe.write_text(whole.replace("clip = 1.0", "clip = 2.0"))
    assert "is of another run" in refused("train", "--quiet", "--resume", "run", code=5)
    recipe.write_text(whole.replace("epsilon = 3.0", "epsilon = nan"))
    assert "only finite numbers" in refused("train", "--quiet", "--resume", "run", code=5)
    assert "there is no run in" in refused("train", "--resume", "nowhere")


PROCESS = """
from sordino import journal
from sordino.cli import main
journal._MARKS = 2
main()
"""


def process(*arguments: object) -> subprocess.Popen[str]:
    """The command in a process of its own, with as few rows and threads as here."""
    command = [sys.executable, "-c", PROCESS, *map(str, arguments)]
    pipe, surroundings = subprocess.PIPE, os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=surroundings)


LONG = [*DIGITS, "--steps", "200"]


def test_a_process_that_is_asked_to_stop_says_so_and_is_resumed(run) -> None:
    started = process(*LONG, "--seed", 0, "--out", "run")
    while not Path("run.private/state.safetensors").exists() and started.poll() is None:
        time.sleep(0.01)
    started.send_signal(signal.SIGTERM)
    printed, said = started.communicate(timeout=60)
    assert (started.returncode, printed) == (75, "")
    assert re.fullmatch(r"sordino: stopped after step \d+ of 200; .* sordino train --resume 'run'\n", said)
    assert oct(Path("run.private").stat().st_mode & 0o777) == "0o700"
    run("train", "--quiet", "--resume", "run")
    run(*LONG, "--seed", 0, "--out", "whole")
    assert contents(Path("run")) == contents(Path("whole"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [["--seed", "5"], []])
def test_a_command_that_is_killed_at_twenty_random_moments_ends_as_if_it_had_not_been(
    seed: list[str], run, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments, state, key = random.Random(1), Path("run.private/state.safetensors"), Path("run.private/key.json")
    secret, in_training, begin = "", 0, [*DIGITS, "--steps", "3000", *seed, "--out", "run"]
    for kill in range(20):
        before = state.stat().st_mtime_ns if state.exists() else 0
        started = process(*(["train", "--quiet", "--resume", "run"] if RunFolder("run").is_run else begin))
        while kill % 4 and started.poll() is None:  # three of four hit the training, the others what comes before it
            if state.exists() and state.stat().st_mtime_ns > before:
                in_training += 1
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.5))
        started.kill()
        started.communicate()
        secret = json.loads(key.read_text())["secret"] if key.exists() else secret
    assert in_training >= 12
    run("train", "--quiet", "--resume", "run")
    if not seed:
        monkeypatch.setattr(Key, "fresh", lambda: Key(bytes.fromhex(secret)))
    run("train", "run/recipe.toml", *seed, "--quiet", "--out", "whole")
    assert contents(Path("run")) == contents(Path("whole"))
    assert not Path("run.private").exists()


# Training in hiding

HIDDEN = ["train", "--data", "digits", "--model", "gated-relu", "--method", "noisy-cgd", *TARGET, "--gates", "4"]
HIDDEN += ["--batch-size", "500", "--epochs", "2", "--trailing-steps", "2"]


@pytest.fixture(scope="module")
def hidden(tmp_path_factory) -> Path:
    """A finished run of which only the end is seen."""
    out = tmp_path_factory.mktemp("hidden") / "run"
    with pytest.raises(SystemExit) as ended:
        main([*HIDDEN, "--seed", "0", "--out", str(out)])
    assert ended.value.code == 0
    return out


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


HIDDEN_MOMENTS = (0, 4, 7, 9, 12, 20, 30, 37, 39, 41, 42, 44, 45, 47, 49, 51)


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
    promised = Path("run/privacy.json").read_bytes()
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda: here | {"torch": "9.9"})
    said = refused("train", "--quiet", "--resume", "run", "--draw-again")
    assert "is not needed with noisy-cgd: nobody has seen the steps" in said
    run("train", "--quiet", "--resume", "run")
    assert Path("run/privacy.json").read_bytes() == promised


def test_elsewhere_no_other_end_is_drawn_beside_one_that_was_measured(
    hidden: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the row is written and the model is not."""

    def ending(folder: RunFolder, weights: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_model", ending)
        with pytest.raises(Killed):
            main([*HIDDEN, "--seed", "0", "--out", "run"])
    assert Path("run/metrics.jsonl").exists()
    here = checkpoint_module.surroundings()
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda: here | {"torch": "9.9"})
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


# Tables

SCHEMA = """
confirmed_public = true
target = {column = "ill", classes = ["no, never", "yes"]}
columns.age = {kind = "number", bounds = [0, 100]}
columns.sex = {kind = "category", categories = ["f", "m"]}
"""
PEOPLE = ["train", "--data", "people.csv", "--schema", "people.toml", "--model", "linear", *TARGET]
PEOPLE += ["--steps", "30", "--batch-size", "100", "--lr", "2", "--seed", "0"]


def table(path: Path, schema: Path, *, rows: int = 400, facts: str = SCHEMA) -> None:
    """People who are ill from fifty on. Two rows in a row are one person's."""
    schema.write_text(facts)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "sex", "ill", "pay", "person"])
        for row in range(rows):
            age = 37 * row % 100
            writer.writerow([age, "fm"[row % 2], "yes" if age >= 50 else "no, never", 10 * age, f"p{row // 2}"])


NEW = "sex,age\nf,5\nm,95\nf,unknown\nm,\n"


def test_a_table_trains_to_a_model_that_predicts_by_the_names_of_classes(run) -> None:
    table(Path("people.csv"), Path("people.toml"), facts='test = "public.csv"' + SCHEMA)
    table(Path("public.csv"), Path("unused.toml"), rows=51)
    run(*PEOPLE, "--out", "run")
    assert contents(Path("run")).keys() == FILES | {"schema.toml"}
    assert last_row(Path("run"))["test_accuracy"] > 0.9
    assert json.loads(Path("run/privacy.json").read_text())["unit"] == "example"
    Path("new.csv").write_text(NEW)
    said = answers(run("predict", "run", "--data", "new.csv"))
    assert [row["prediction"] for row in said[:3]] == ["no, never", "yes", ""]
    assert said[0].keys() == {"row", "prediction", "p(no, never)", "p(yes)"}
    assert float(said[0]["p(no, never)"]) + float(said[0]["p(yes)"]) == pytest.approx(1)
    assert set(said[2].values()) == {"2", ""}  # its row, and no answer
    assert said[3]["prediction"] != ""  # a missing number is the middle of its bounds
    assert run("predict", "run", "--data", "new.csv", "--out", "said.csv") == ""
    assert answers(Path("said.csv").read_text()) == said


def test_a_table_of_users_promises_to_users(run) -> None:
    table(Path("people.csv"), Path("people.toml"), facts='user = "person"\nrows_per_user = 2' + SCHEMA)
    run(*PEOPLE, "--out", "run")
    promised = json.loads(Path("run/privacy.json").read_text())
    assert (promised["unit"], promised["examples"]) == ("user", 200)
    assert "for every user" in promised["statement"]
    Path("new.csv").write_text(NEW)
    said = answers(run("predict", "run", "--data", "new.csv"))
    assert [row["prediction"] for row in said[:3]] == ["no, never", "yes", ""]


@pytest.mark.parametrize("unit", ["", 'user = "person"\nrows_per_user = 2\n'])
def test_a_table_of_numbers_is_learnt_and_predicted_in_their_own_unit(unit: str, run) -> None:
    facts = unit + SCHEMA.replace(
        '{column = "ill", classes = ["no, never", "yes"]}', '{column = "pay", bounds = [0, 1000]}'
    )
    table(Path("people.csv"), Path("people.toml"), facts='test = "public.csv"\n' + facts)
    table(Path("public.csv"), Path("unused.toml"), rows=51)
    run(*PEOPLE, "--lr", "0.2", "--out", "run")
    assert 0 <= last_row(Path("run"))["test_mse"] < 0.2
    assert json.loads(Path("run/privacy.json").read_text())["unit"] == ("user" if unit else "example")
    Path("new.csv").write_text(NEW)
    low, high, unknown, _ = answers(run("predict", "run", "--data", "new.csv"))
    assert float(low["prediction"]) < 400 < 600 < float(high["prediction"])
    assert unknown == {"row": "2", "prediction": ""}


def test_under_add_or_remove_nothing_that_is_seen_depends_on_the_true_size(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for rows in (400, 399):
        folder = tmp_path / str(rows)
        folder.mkdir()
        monkeypatch.chdir(folder)
        table(Path("people.csv"), Path("people.toml"), rows=rows)
        start = [argument for argument in PEOPLE if argument not in ("--batch-size", "100")]
        printed = run(*start, "--adjacency", "add-or-remove", "--expected-examples", 400, "--out", "run")
        files = contents(Path("run"))
        del files["model.safetensors"]
        seen.append((printed, files))
    assert seen[0] == seen[1]
    assert b'"examples": 400' in seen[0][1]["privacy.json"] and "add-or-remove" in seen[0][0]


# Other data


def test_arrays_train_and_predict(run, refused) -> None:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(300, 4)).astype(np.float32)
    inputs[0, 0], inputs[1, 1] = np.nan, 1e30
    np.savez("a.npz", inputs=inputs, target=(inputs[:, 0] > 0).astype(np.int64))
    facts = "confirmed_public = true\n[inputs]\nshape = [4]\nrange = [-2, 2]\n[target]\nclasses = 2"
    Path("a.toml").write_text(facts)
    start = ["train", "--data", "a.npz", "--model", "linear", *TARGET, "--delta", "1e-3", "--seed", 0]
    run(*start, "--steps", 20, "--lr", 2, "--out", "run")
    np.savez("new.npz", inputs=np.array([[-1, 0, 0, 0], [2, 0, 0, 0], [9e9, 0, 0, 0], [np.nan, 0, 0, 0]]))
    low, high, clamped, unknown = answers(run("predict", "run", "--data", "new.npz"))
    assert (low["prediction"], high["prediction"], unknown["prediction"]) == ("0", "1", "")
    assert high["p(1)"] == clamped["p(1)"]  # both are at the end of the public range
    np.savez("other.npz", inputs=np.zeros((2, 5)))
    assert "rows of shape (5,), the model takes (4,)" in refused("predict", "run", "--data", "other.npz", code=3)
    np.savez("none.npz", inputs=np.zeros((0, 4)))
    assert "has no rows" in refused("predict", "run", "--data", "none.npz", code=3)
    np.savez("named.npz", rows=np.zeros((2, 4)))
    assert "array named inputs" in refused("predict", "run", "--data", "named.npz", code=3)


def test_a_folder_of_pictures_trains_and_predicts(run, refused) -> None:
    image = pytest.importorskip("PIL.Image")

    def picture(path: Path, shade: int, size: tuple[int, int] = (8, 8)) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.new("L", size, shade).save(path)

    for number in range(60):
        picture(Path(f"shades/train/dark/{number}.png"), number)
        picture(Path(f"shades/train/light/{number}.png"), 195 + number)
    picture(Path("shades/test/dark/0.png"), 10)
    picture(Path("shades/test/light/0.png"), 250)
    run("train", "--data", "shades", "--model", "linear", *TARGET, "--delta", "1e-3", "--steps", 20, "--seed", 0)
    assert last_row(Path("runs/shades-linear-1"))["test_accuracy"] == 1
    picture(Path("new/a.png"), 0)
    picture(Path("new/b.png"), 255)
    said = answers(run("predict", "runs/shades-linear-1", "--data", "new"))
    assert [row["prediction"] for row in said] == ["dark", "light"]
    picture(Path("new/c.png"), 0, (9, 8))
    assert "has shape (1, 8, 9)" in refused("predict", "runs/shades-linear-1", "--data", "new", code=3)
    Path("empty").mkdir()
    assert "there is no picture" in refused("predict", "runs/shades-linear-1", "--data", "empty", code=3)


def test_the_test_rows_of_a_standard_set_are_predicted_as_well_as_was_measured(digits: Path, run) -> None:
    said = answers(run("predict", digits, "--data", "digits"))
    truth = load_digits().test.target.tolist()
    right = [int(row["prediction"]) == label for row, label in zip(said, truth, strict=True)]
    assert sum(right) / len(right) == pytest.approx(last_row(digits)["test_accuracy"])


def test_features_that_are_kept_or_lost_on_the_way_do_not_matter(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "sets"))
    begin = ["train", "--data", "digits", "--model", "scatter-linear", *TARGET, "--steps", "4", "--seed", "0", "--out"]
    run(*begin, "whole")
    kept, *_ = (tmp_path / "sets" / "features").iterdir()
    kept.write_bytes(b"damaged")
    assert killed_at(25, [*begin, "run"], monkeypatch)
    shutil.rmtree(tmp_path / "sets")
    run("train", "--quiet", "--resume", "run")
    assert contents(Path("run")) == contents(Path("whole"))


# Runs and predictions


def test_runs_are_listed_whatever_state_they_are_in(digits: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = [*DIGITS, "--seed", "0", "--out"]
    shutil.copytree(digits, "runs/a")
    assert killed_at(25, [*begin, "runs/b"], monkeypatch)
    assert killed_at(4, [*begin, "runs/c"], monkeypatch)
    shutil.copytree(digits, "runs/d")
    Path("runs/d/privacy.json").write_text("{")
    shutil.copytree(digits, "runs/e")
    Path("runs/e/recipe.toml").write_text("epsilon = nan")
    Path("runs/notes").mkdir()
    rows = {row["run"]: row for row in json.loads(run("runs", "--json"))["rows"]}
    assert list(rows) == [f"runs/{name}" for name in "abcde"]
    assert [rows[f"runs/{name}"]["state"] for name in "abc"] == ["finished", "step 2 of 4", "not begun"]
    assert all(rows[f"runs/{name}"]["state"].startswith("damaged: ") for name in "de")
    promised = json.loads((digits / "privacy.json").read_text())
    assert rows["runs/a"]["epsilon"] == promised["epsilon"] == rows["runs/b"]["epsilon"]
    assert rows["runs/a"]["test_accuracy"] == last_row(digits)["test_accuracy"]
    headings, *lines = run("runs").splitlines()
    assert headings.split()[:5] == ["run", "state", "data", "model", "epsilon"]
    assert len(lines) == 5 and "zero-out" in lines[0]
    assert promised["epsilon"] <= float(re.search(r"linear +([\d.]+)", lines[0])[1])
    assert run("runs", "runs/a", "runs/c").count("\n") == 3


def test_where_no_run_is_that_is_said(refused) -> None:
    assert refused("runs") == "sordino: there is no run in 'runs'.\n"
    assert "there is no run in 'nowhere'" in refused("predict", "nowhere", "--data", "digits")


def test_an_unfinished_run_predicts_nothing(refused, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at(25, [*DIGITS, "--out", "run"], monkeypatch)
    assert "is not finished: resume it first" in refused("predict", "run", "--data", "digits")


@pytest.mark.parametrize(
    ("data", "code", "said"),
    [
        ("two-patch", 3, "the model takes (1, 8, 8)"),
        ("new.csv", 2, "is a table, and the model was not trained on one"),
        ("nowhere", 3, "is no data set and no readable"),
        ("none.npz", 3, "cannot be read"),
    ],
)
def test_data_that_a_model_cannot_take_is_refused(data: str, code: int, said: str, digits: Path, refused) -> None:
    Path("new.csv").write_text(NEW)
    assert said in refused("predict", digits, "--data", data, code=code)


def test_predictions_are_not_written_where_they_cannot_be(digits: Path, refused) -> None:
    Path("folder").mkdir()
    assert "cannot be written" in refused("predict", digits, "--data", "digits", "--out", "folder", code=3)
    assert "cannot be written" in refused("predict", digits, "--data", "digits", "--out", "no/where", code=3)


class Evil:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_a_pickle_in_place_of_a_model_is_refused_unexecuted(copied: Path, refused) -> None:
    (copied / "model.safetensors").write_bytes(pickle.dumps(Evil()))
    assert "is not a safetensors file" in refused("predict", copied, "--data", "digits", code=5)
    assert not Path("executed").exists()


def test_weights_that_are_not_finite_are_refused(copied: Path, refused) -> None:
    weights = load_tensors(copied / "model.safetensors").tensors
    next(iter(weights.values())).view(-1)[0] = torch.nan
    save_tensors(copied / "model.safetensors", weights)
    assert "not finite" in refused("predict", copied, "--data", "digits", code=5)


def test_weights_of_another_architecture_are_refused(copied: Path, refused, run) -> None:
    run(*DIGITS, "--model", "mlp", "--steps", 1, "--out", "mlp")
    shutil.copy("mlp/model.safetensors", copied)
    assert "is of another model" in refused("predict", copied, "--data", "digits", code=5)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("facts.json", '"input_shape": [', '"input_shape": ["8", '),
        ("facts.json", '"num_classes": 10', '"num_classes": 1000000000'),
        ("facts.json", "    1,\n    8", "    16777216,\n    8"),
        ("facts.json", "{", ""),
        ("recipe.toml", '"linear"', '"h-cnn"'),
        ("recipe.toml", '"linear"', '"evil"'),
        ("recipe.toml", "epsilon", "epsilom"),
    ],
)
def test_a_changed_run_is_refused_before_memory_is_taken(name: str, old: str, new: str, copied: Path, refused) -> None:
    text = (copied / name).read_text()
    assert old in text
    (copied / name).write_text(text.replace(old, new, 1))
    refused("predict", copied, "--data", "digits", code=5)


def test_networks_and_data_sets_are_listed(run) -> None:
    assert [line.split()[0] for line in run("models").splitlines()] == ["name", *(name for name, _ in names())]
    assert [line.split()[0] for line in run("data", "list").splitlines()] == ["name", *NAMES]


# Names of files are data


@pytest.mark.parametrize("name", ["two\nlines", "-rf", "--seed", "naïve ☃ data", "a'''b\"", "\x1b[2Jesc", "100 %s {x}"])
def test_a_path_is_data_whatever_it_is_called(name: str, run, refused) -> None:
    table(Path(f"{name}.csv"), Path(f"{name}.toml"))
    start = ["train", f"--data={name}.csv", f"--schema={name}.toml", "--model", "linear", *TARGET, "--steps", "1"]
    printed = run(*start, f"--out={name}")
    first, *rest = printed.splitlines()
    assert first.startswith("run ") and rest[0].startswith("epsilon ")
    assert len(run("runs", "--", name).splitlines()) == 2
    assert all(character.isprintable() or character == "\n" for character in printed)
    Path(f"{name}.new.csv").write_text(NEW)
    assert len(answers(run("predict", f"--data={name}.new.csv", "--", name))) == 4
    assert "is not empty" in refused(*start, f"--out={name}")
    (Path(name) / "model.safetensors").write_bytes(b"")
    refused("predict", "--data=digits", "--", name, code=5)
    Path(f"{name}.csv").unlink()
    refused(*start, code=3)
    Path(f"{name}.recipe").write_text("epsilon = 3 3")
    refused("train", "--", f"{name}.recipe")
    (Path(name) / "recipe.toml").unlink()
    refused("train", f"--resume={name}")


def test_a_path_that_is_not_utf8_is_refused_before_data_is_touched(refused) -> None:
    assert "must be a text in UTF-8" in refused(*DIGITS, "--data", os.fsdecode(b"\xff.csv"))


def test_an_out_folder_that_is_not_utf8_is_shown_escaped(run) -> None:
    assert r"'\udcff'" in run(*DIGITS, "--steps", 1, "--out", os.fsdecode(b"\xff"))


# TensorBoard


def test_tensorboard_gets_public_quantities_only(run) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(*DIGITS, "--seed", 0, "--out", "run", "--tensorboard")
    events = accumulators.EventAccumulator("run/tensorboard")
    events.Reload()
    public = {"epoch", "epsilon", "delta", "validation_accuracy", "test_accuracy"}
    assert set(events.Tags()["scalars"]) == public
    assert not any(kind for name, kind in events.Tags().items() if name != "scalars")
    assert [event.step for event in events.Scalars("epsilon")] == [2, 4]
    assert events.Scalars("test_accuracy")[0].value == pytest.approx(last_row(Path("run"))["test_accuracy"])


# The page


def commands_of(page: str) -> list[str]:
    """Runs every command on a page, and gives them."""
    text = (Path(__file__).parent.parent / "docs" / page).read_text()
    commands = re.findall(r"^sordino (.*)$", text, re.MULTILINE)
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command, comments=True))
        assert ended.value.code == 0, command
    return commands


def test_the_commands_on_the_page_run() -> None:
    assert len(commands_of("training.md")) == 5
    assert {path.name for path in Path("runs").iterdir()} == {"digits-linear-1", "digits-linear-2"}
    assert len(answers(Path("said.csv").read_text())) == len(load_digits().test.target)


def test_the_commands_on_the_page_about_hidden_states_run() -> None:
    assert len(commands_of("hidden-state.md")) == 2
    assert last_row(Path("runs/digits-gated-relu-1"))["test_accuracy"] > 0.8
