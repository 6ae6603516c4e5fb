"""Each paper's README names the commands of its experiments and leads to their results."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from sordino_papers.experiments import EXPERIMENTS

FOLDERS = Path(__file__).parents[2] / "sordino_papers"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_readme_beside_an_experiment_has_its_command_and_leads_to_its_results(name) -> None:
    code = Path(inspect.getfile(type(EXPERIMENTS[name])))
    readme = (code.parent / "README.md").read_text()
    assert f"`{name}`" in readme or f"`sordino reproduce {name}`" in readme or f"reproduce {name} --show" in readme
    assert f"(../../../results/{name}/" in readme


@pytest.mark.parametrize("folder", [folder.parent for folder in sorted(FOLDERS.glob("*/FINDINGS.md"))])
def test_lines_of_prose_are_at_most_120_columns(folder) -> None:
    for page in folder.glob("*.md"):
        long = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
        assert not long, (page.name, long)
