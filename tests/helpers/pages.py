"""The Python examples of a page of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_examples(page):
    """Runs all Python blocks of a page, one after the other, as a reader would, and returns their names."""
    names = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        exec(compile(block, page, "exec"), names)
    return names
