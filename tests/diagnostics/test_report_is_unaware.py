"""The report of a run knows nothing of diagnostics, even if somebody puts them beside its files."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import sordino


def test_no_module_that_makes_promises_imports_diagnostics() -> None:
    root = Path(sordino.__file__).parent
    may = {root / "diagnostics", root / "experiments"}
    for path in root.rglob("*.py"):
        if may & set(path.parents):
            continue
        assert not any(name.startswith("sordino.diagnostics") for name in _imported(path)), path


def _imported(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [f"{node.module}.{a.name}" for node in nodes if isinstance(node, ast.ImportFrom) for a in node.names]


def test_importing_diagnostics_adds_no_section_to_a_card() -> None:
    code = (
        "import sordino.report; from sordino.report import sections as s; before = list(s._makers); "
        "import sordino.diagnostics; assert before and s._makers == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
