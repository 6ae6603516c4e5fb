"""The examples of docs/auditing.md run, and show what the page says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "auditing.md"


def test_the_page_about_audits_runs():
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        exec(compile(block, str(PAGE), "exec"), names)
    assert all(0 <= bound <= names["claimed"] for bound in names["shown"].values())
    assert names["shown"]["f-dp"] > 0.3
