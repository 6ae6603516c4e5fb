"""The page about the architecture names every package, and shows the import contract that is enforced."""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

import sordino

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGE = Path(sordino.__file__).parent


def contract() -> list[set[str]]:
    """Layers of the import contract, from the top down."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter")
    lines = parser["importlinter:contract:layers"]["layers"].split("\n")
    return [{name.strip().removeprefix("sordino.") for name in line.split(":")} for line in lines if line.strip()]


def test_the_page_shows_the_import_contract() -> None:
    block = PAGE.split("## Who imports whom")[1].split("```")[1]
    shown = [{name.strip() for name in line.split(":")} for line in block.strip().splitlines()]
    assert shown == contract()
    assert len(shown) <= 8


def test_every_package_is_in_the_contract_and_on_the_page() -> None:
    packages = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    packages -= {"__init__", "__pycache__", "py"}
    assert packages <= set.union(*contract())
    first_columns = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    named = {name for column in first_columns for name in re.findall(r"`(\w+)`", column)}
    assert packages <= named
    assert len(packages) <= 24


def test_every_file_that_the_page_names_exists() -> None:
    names = set(re.findall(r"(?<![\w/])((?:tests|[a-z_]+)/[\w/]+\.(?:py|json))", PAGE))
    missing = [name for name in names if not (ROOT / name).exists() and not (PACKAGE / name).exists()]
    assert len(names) > 10 and not missing


def classes() -> list[tuple[str, Path]]:
    """Names of all classes of the library and of the papers, with their files."""
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "papers" / "sordino_papers").rglob("*.py")]
    trees = ((path, ast.parse(path.read_text("utf-8"))) for path in files)
    return [(node.name, path) for path, tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_no_class_name_is_defined_in_two_modules() -> None:
    modules: dict[str, set[Path]] = {}
    for name, path in classes():
        modules.setdefault(name, set()).add(path)
    assert not {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1 and not name.startswith("_")}
