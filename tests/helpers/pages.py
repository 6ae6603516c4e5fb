"""Execution of the Python examples of a documentation page."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_examples(page):
    """Runs all Python blocks of a page in order, and returns the resulting namespace."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names
