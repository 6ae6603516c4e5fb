"""Where a number comes from: command, commit, machine."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from sordino._input.files import write_atomically


def origin(command: str) -> dict[str, str]:
    """What a result file says of how it was made.

    >>> sorted(origin("sordino reproduce hidden-state"))
    ['command', 'commit', 'machine']
    """
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return {"command": command, "commit": _commit(), "machine": machine}


def write_numbers(path: Path, numbers: Mapping[str, Any], command: str) -> None:
    """A result file: numbers, and where they come from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps({**numbers, **origin(command)}, indent=2, allow_nan=False) + "\n").encode())


def _commit() -> str:
    """The commit that this code lies in, or the version of the package where there is none."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"sordino {version('sordino')}"
    return found.stdout.strip()
