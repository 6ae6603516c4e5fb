"""Execution of the examples of a documentation page: Python, and commands."""

import re
import shlex
from pathlib import Path

from sordino.cli import main

ROOT = Path(__file__).parents[2]


def run_examples(page, *, commands=False):
    """Runs all Python blocks of a page in order, with `commands` the shell blocks too, and returns the namespace."""
    names = {}
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL):
        if kind == "python":
            exec(compile(block, page, "exec"), names)
        elif commands:
            for line in block.splitlines():
                run_command(line)
    return names


def run_command(line):
    """Runs a line of a shell, which must be a command of Sordino and succeed."""
    program, *arguments = shlex.split(line, comments=True)
    assert program == "sordino", line
    try:
        main(arguments)
    except SystemExit as ended:
        assert ended.code == 0, line
