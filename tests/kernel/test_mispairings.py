"""The type checker refuses what must not be expressible."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MISTAKES = ROOT / "tests" / "kernel" / "mispairings.py"


def test_mypy_refuses_every_mispairing_and_nothing_else():
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", "--no-error-summary"]
    environment = os.environ | {"MYPYPATH": "src"}
    output = subprocess.run([*command, str(MISTAKES)], cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    refused = {int(line) for line in re.findall(r"mispairings\.py:(\d+): error", output)}
    marked = {number for number, line in enumerate(MISTAKES.read_text().splitlines(), 1) if line.endswith("# refused")}
    assert len(marked) >= 30
    assert refused == marked, output
