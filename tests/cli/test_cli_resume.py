"""`sordino train --resume`: a command that is killed anywhere ends as if it had not been, or costs what it says."""

from __future__ import annotations

import json
import random
import re
import signal
import time
from pathlib import Path

import pytest
from killed_commands import killed_at, process
from table_of_people import PEOPLE, table
from training_commands import DIGITS, contents
from training_commands import digits as digits
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino.kernel.randomness import Key
from sordino.training import checkpoint as checkpoint_module
from sordino.training.run_folder import RunFolder

MOMENTS = (0, 2, 4, 6, 7, 9, 11, 13, 16, 25, 33, 38, 39, 40, 41, 42, 43, 44, 45, 47, 49)


@pytest.mark.parametrize("moment", [*MOMENTS[::2], *(pytest.param(at, marks=pytest.mark.slow) for at in MOMENTS[1::2])])
def test_a_command_that_is_killed_anywhere_is_resumed_to_what_would_have_been(
    moment: int, digits: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = [*DIGITS, "--seed", "0", "--out", "run"]
    was_killed = killed_at(moment, begin, monkeypatch)
    assert was_killed or moment >= 42
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
    monkeypatch.setattr(checkpoint_module, "surroundings", lambda *_: here | {"torch": "9.9"})
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
    assert "give no settings besides --resume" in refused("train", "--resume", digits, *option)


def test_a_run_whose_recipe_was_changed_is_not_resumed(monkeypatch: pytest.MonkeyPatch, refused) -> None:
    assert killed_at(25, [*DIGITS, "--seed", "0", "--out", "run"], monkeypatch)
    recipe = Path("run/recipe.toml")
    whole = recipe.read_text()
    recipe.write_text(whole.replace("clip = 1.0", "clip = 2.0"))
    assert "belongs to another run" in refused("train", "--quiet", "--resume", "run", code=5)
    recipe.write_text(whole.replace("epsilon = 3.0", "epsilon = nan"))
    assert "only finite numbers" in refused("train", "--quiet", "--resume", "run", code=5)
    assert "there is no run in" in refused("train", "--resume", "nowhere")


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
