"""Names of files are data: every command takes them as they are, and shows them on one line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from table_of_people import NEW, table
from training_commands import DIGITS, TARGET, answers
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick


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
    assert "must be a non-empty UTF-8 string" in refused(*DIGITS, "--data", os.fsdecode(b"\xff.csv"))


def test_an_out_folder_that_is_not_utf8_is_shown_escaped(run) -> None:
    assert r"'\udcff'" in run(*DIGITS, "--steps", 1, "--out", os.fsdecode(b"\xff"))
