"""Runs a script in a process that may take little memory beyond that of the imports.

    python limited_memory.py MEBIBYTES SCRIPT ARGUMENT...

The limit is on memory of the process itself: mapped files do not count. Processes that it forks have one each.
"""

from __future__ import annotations

import re
import resource
import runpy
import sys
from pathlib import Path

import torch.utils.data

import sordino.data
import sordino.training.fit

IMPORTED = (torch, sordino)


def limit_memory(mebibytes: int) -> None:
    """Lets the process take so much more memory of its own."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    allowed = (int(found[1]) << 10) + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))


if __name__ == "__main__":
    limit_memory(int(sys.argv[1]))
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
