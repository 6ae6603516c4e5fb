"""One loop: private steps are taken one after the other in `training/loop.py`, and in no other file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sordino

SOURCES = Path(sordino.__file__).parent
PAPERS = SOURCES.parents[1] / "papers" / "sordino_papers"
THE_LOOP = SOURCES / "training" / "loop.py"
MAKES_RUNS = {"PrivateRun", "fresh_run"}


def loops_in(source: str) -> Iterator[int]:
    """Lines that iterate over a run, ask it for its next step, or loop until all its steps are taken."""
    tree = ast.parse(source)
    runs = {"run", "private_run"} | {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _called(node.value) in MAKES_RUNS
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=over) | ast.comprehension(iter=over):
                if _is_run(over, runs):
                    yield over.lineno
            case ast.Call(func=ast.Name(id="next"), args=[first, *_]):
                if _is_run(first, runs):
                    yield node.lineno
            case ast.While(test=test):
                if any(isinstance(each, ast.Attribute) and each.attr == "steps" for each in ast.walk(test)):
                    yield node.lineno


def _is_run(expression: ast.expr, runs: set[str]) -> bool:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in runs
        case _:
            return _called(expression) in MAKES_RUNS


def _called(expression: ast.expr) -> str:
    match expression:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case _:
            return ""


@pytest.mark.parametrize(
    "source",
    [
        "for private in so.PrivateRun(plan, model, data): pass",
        "steps = PrivateRun(plan, model, data)\nfor private in steps: pass",
        "values = [private.value for private in self.run]",
        "private = next(run)",
        "while run.steps < len(run):\n    training.step()",
    ],
)
def test_a_loop_would_be_found(source: str) -> None:
    assert list(loops_in(source))


@pytest.mark.parametrize("source", ["for run in runs: pass", "while high - low > 1: pass", "next(batches)"])
def test_other_loops_are_left_alone(source: str) -> None:
    assert not list(loops_in(source))


def test_no_loop_over_private_steps_exists_outside_one_file() -> None:
    files = [*SOURCES.rglob("*.py"), *PAPERS.rglob("*.py")]
    found = {path: list(loops_in(path.read_text("utf-8"))) for path in files}
    found = {path: lines for path, lines in found.items() if lines}
    assert found.pop(THE_LOOP)
    assert not found
