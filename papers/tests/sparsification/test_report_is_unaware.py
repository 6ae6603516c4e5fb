"""The report of a run knows nothing of diagnostics, even if somebody puts them beside its files."""

from __future__ import annotations

import ast
from pathlib import Path

import sordino
from sordino.report import write_card
from sordino.training.not_private import NOT_PRIVATE


def test_no_module_of_the_library_imports_the_papers() -> None:
    for path in Path(sordino.__file__).parent.rglob("*.py"):
        assert not any(name.startswith("sordino_papers") for name in _imported(path)), path


def _imported(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [f"{node.module}.{a.name}" for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names]


def test_what_somebody_puts_into_the_folder_of_a_run_is_not_on_its_card(run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--batch-size", 100, "--steps", 1, "--epsilon", 3, "--delta", 1e-4, "--seed", 0, "--quiet"]
    run("train", "--data", "digits", "--model", "linear", *small, "--out", "run")
    for name in ("symmetry.json", "diagnostics.json", "exposed.json"):
        (tmp_path / "run" / name).write_text(f'{{"warning": "{NOT_PRIVATE}"}}')
    page = write_card(tmp_path / "run", tmp_path / "card")
    written = page.read_text() + (page.parent / "report.json").read_text()
    assert "raw gradients" not in written and "symmetry.json" not in written
