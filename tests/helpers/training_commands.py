"""Short training commands in an empty folder, and their run folders.

A test file imports the fixtures that it needs; `quick` and `elsewhere` then apply to each of its tests.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from sordino.cli import main
from sordino.training import run_writer as writer_module

TARGET = ["--epsilon", "3", "--delta", "1e-4", "--quiet"]
DIGITS = ["train", "--data", "digits", "--model", "linear", *TARGET, "--batch-size", "100", "--steps", "4"]
FILES = {"recipe.toml", "facts.json", "metrics.jsonl", "model.safetensors", "privacy.json"}


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Uses one thread and few evaluations, because these tests are about commands and not about results."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_module, "_EVALUATIONS", 2)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes to an empty folder, in which commands run."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """A finished run on digits with a seed. Tests that change it take a copy."""
    return finished(DIGITS, tmp_path_factory.mktemp("digits") / "run")


def finished(arguments: list[str], out: Path) -> Path:
    """Runs a training command with a seed, which must succeed."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--seed", "0", "--out", str(out)])
    assert ended.value.code == 0
    return out


@pytest.fixture
def copied(digits: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits, tmp_path / "copied"))


def contents(folder: Path) -> dict[str, bytes]:
    """The contents of a run folder without the name of the run, which is random."""
    name = re.compile(rb'"name": "[0-9a-f]{32}"')
    return {path.name: name.sub(b'"name": ""', path.read_bytes()) for path in sorted(folder.iterdir())}


def last_row(folder: Path) -> dict[str, float]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def answers(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))
