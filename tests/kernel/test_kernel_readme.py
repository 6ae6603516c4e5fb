"""The README of the kernel is true: its files, their imports, and the seven files of the reading order."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so

KERNEL = Path(so.__file__).parent / "kernel"
PAGE = (KERNEL / "README.md").read_text("utf-8")
READ = re.findall(r"^\d\. \[`([\w./]+)`\]", PAGE, re.MULTILINE)
TABLE = {
    name: (re.findall(r"`(\w+)`", kernel), re.findall(r"`(\w+)`", elsewhere))
    for name, kernel, elsewhere in re.findall(
        r"^\| `(\w+\.py)` \| ([^|]*) \| ([^|]*) \| \S[^|]* \|$", PAGE, re.MULTILINE
    )
}
FILES = sorted(path.name for path in KERNEL.glob("*.py") if path.name != "__init__.py")


def imports(path: Path) -> Iterator[str]:
    """The modules of Sordino that a file imports, by their dotted names."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("sordino"))
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module = node.module or ""
            if module in ("sordino", "sordino.kernel"):
                yield from (f"{module}.{alias.name}" for alias in node.names)
            elif module.startswith("sordino."):
                yield module


def test_every_file_of_the_kernel_is_on_the_page() -> None:
    assert sorted(TABLE) == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_file_imports_what_its_line_says(name: str) -> None:
    parts = {tuple(module.split(".")[1:]) for module in imports(KERNEL / name)}
    kernel = sorted({part[1] for part in parts if part[0] == "kernel"})
    elsewhere = sorted({part[0] for part in parts if part[0] != "kernel"})
    assert (kernel, elsewhere) == (sorted(TABLE[name][0]), sorted(TABLE[name][1]))


def test_imports_within_the_kernel_have_no_cycle() -> None:
    graph = {name.removesuffix(".py"): kernel for name, (kernel, _) in TABLE.items()}
    assert list(TopologicalSorter(graph).static_order())[-1] in ("run", "calibration")


def test_the_reading_order_is_seven_files_that_exist() -> None:
    assert len(READ) == 7
    assert all((KERNEL / name).is_file() for name in READ)


def test_the_step_imports_every_stage_of_the_reading_order() -> None:
    imported = {module.removeprefix("sordino.").replace(".", "/") for module in imports(KERNEL / "step.py")}
    stages = {f"kernel/{name.removesuffix('.py')}" for name in READ[1:6]}
    assert stages <= imported
    assert "accounting" in imported  # whose `Guarantee` a plan gives


def callees(caller: Path, work: Callable[[], object]) -> set[str]:
    """The files of Sordino that functions of `caller` call, `caller` among them if it calls itself."""
    found, sources = set[str](), str(KERNEL.parent)

    def watch(frame: FrameType, event: str, argument: object) -> None:
        outer = frame.f_back
        while outer is not None and not outer.f_code.co_filename.startswith(sources):
            outer = outer.f_back
        entered = frame.f_code.co_filename
        if event == "call" and entered.startswith(sources) and outer is not None:
            if outer.f_code.co_filename == str(caller):
                found.add(Path(entered).relative_to(sources).as_posix())

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def test_a_step_of_a_linear_model_and_its_guarantee_call_the_files_of_the_reading_order() -> None:
    """All files that the step calls are in the reading order, except the gate, the codec, and values passed on."""
    plan = so.Plan(so.Poisson(0.5, 9), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(4.0))
    run = so.PrivateRun(plan, nn.Linear(4, 3), (torch.zeros(20, 4), torch.zeros(20, dtype=torch.int64)), seed=0)
    next(run)
    called = callees(KERNEL / "step.py", lambda: (next(run), plan.guarantee(delta=1e-5)))
    read = {(KERNEL / name).resolve().relative_to(KERNEL.parent).as_posix() for name in READ}
    assert read <= called
    beside = {"budget", "encoding", "micro_batches", "randomness", "rows", "states"}
    assert called <= read | {f"kernel/{name}.py" for name in beside}
