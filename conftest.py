"""Fixtures of all tests and docstring examples: the command line, seeded torch, reproducible hypothesis."""

import re

import pytest
import torch
from hypothesis import HealthCheck, settings

from sordino.cli import main

# A contract's property is run once per class that inherits it, which is what the suppressed check asks about.
inherited = [HealthCheck.differing_executors, HealthCheck.too_slow]
settings.register_profile("ours", derandomize=True, deadline=None, suppress_health_check=inherited)
settings.load_profile("ours")


@pytest.fixture(autouse=True)
def seeded():
    """Seeds torch, so that models that a test initialises are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def run(capsys):
    """Runs the command line in this process and gives what it printed; anything but success is a failure."""

    def runner(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        assert printed.err == ""
        return printed.out

    return runner


@pytest.fixture
def refused(capsys):
    """Runs the command line in this process and gives the one line that it was refused with."""

    def runner(*arguments, code=2):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (code, "")
        assert re.fullmatch(r"sordino: [^\n]+\n", printed.err)
        return printed.err

    return runner


def pytest_terminal_summary(terminalreporter):
    """Prints the mutation score: how many of the planted bugs a check noticed."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    mutants = [r for r in reports if "test_the_mutant_is_caught" in r.nodeid and r.when == "call"]
    if mutants:
        caught = sum(report.passed for report in mutants)
        terminalreporter.write_line(f"mutation score: {caught} of {len(mutants)} planted bugs caught")
