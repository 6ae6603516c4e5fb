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

from sordino._input.files import read_bytes, write_atomically
from sordino._input.strict_json import parse
from sordino.errors import StateError

_LARGEST = 1 << 26


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


def kept_numbers(path: Path) -> dict[str, Any] | None:
    """The numbers of a result file, or None if there is no such file."""
    if not path.exists():
        return None
    found = parse(read_bytes(path, at_most=_LARGEST))
    if not isinstance(found, dict):
        raise StateError(f"{str(path)!r} is not a result file: remove it, and it is measured again.")
    return found


def _commit() -> str:
    """The commit that this code lies in, or the version of the package where there is none."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"sordino {version('sordino')}"
    return found.stdout.strip()
