"""Where a number comes from: command, commit, machine."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch


def origin(command: str) -> dict[str, str]:
    """What a result file says of how it was made.

    >>> sorted(origin("sordino reproduce hidden-state"))
    ['command', 'commit', 'machine']
    """
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    return {"command": command, "commit": _commit(), "machine": machine}


def _commit() -> str:
    """The commit that this code lies in, or the version of the package where there is none."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"sordino {version('sordino')}"
    return found.stdout.strip()
