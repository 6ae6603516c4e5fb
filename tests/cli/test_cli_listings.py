"""Listings: runs in whatever state they are, networks and data sets."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from killed_commands import killed_at
from training_commands import DIGITS, last_row
from training_commands import digits as digits
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino.data.standard import NAMES
from sordino.recipes import names


def test_runs_are_listed_whatever_state_they_are_in(digits: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = [*DIGITS, "--seed", "0", "--out"]
    shutil.copytree(digits, "runs/a")
    assert killed_at(35, [*begin, "runs/b"], monkeypatch)
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


def test_networks_and_data_sets_are_listed(run) -> None:
    assert [line.split()[0] for line in run("models").splitlines()] == ["name", *(name for name, _ in names())]
    assert [line.split()[0] for line in run("data", "list").splitlines()] == ["name", *NAMES]
