"""The commands on the pages about training and about hidden states run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from training_commands import answers, last_row
from training_commands import elsewhere as elsewhere
from training_commands import quick as quick

from sordino.cli import main
from sordino.data.standard import load_digits


def commands_of(page: str) -> list[str]:
    """Runs every command on a page, and gives them."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[:1]:
        Path(name).write_text(code)
    commands = re.findall(r"^sordino (.*)$", text, re.MULTILINE)
    for command in commands:
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command, comments=True))
        assert ended.value.code == 0, command
    return commands


def test_the_commands_on_the_page_run() -> None:
    assert len(commands_of("training.md")) == 8
    assert {path.name for path in Path("runs").iterdir()} == {"digits-linear-1", "digits-linear-2", "digits-network-1"}
    assert len(answers(Path("predictions.csv").read_text())) == len(load_digits().test.target)


def test_the_commands_on_the_page_about_hidden_states_run() -> None:
    assert len(commands_of("hidden-state.md")) == 2
    assert last_row(Path("runs/digits-gated-relu-1"))["test_accuracy"] > 0.8
