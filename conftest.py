"""Fixtures of all tests and docstring examples: the command line, seeded torch, reproducible hypothesis."""

import re

import pytest
import torch
from hypothesis import HealthCheck, settings

from sordino.cli import main

# A property of a contract runs once per class that inherits it, which the suppressed health check would reject.
inherited = [HealthCheck.differing_executors, HealthCheck.too_slow]
settings.register_profile("ours", derandomize=True, deadline=None, suppress_health_check=inherited)
settings.load_profile("ours")


@pytest.fixture(autouse=True)
def seeded():
    """Seeds torch, so that models initialized in a test are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def run(capsys):
    """Runs a command in this process and returns its output. Fails unless the command succeeds."""

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
    """Runs a command in this process that must fail, and returns its one-line error."""

    def runner(*arguments, code=2):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out) == (code, "")
        assert re.fullmatch(r"sordino: [^\n]+\n", printed.err)
        return printed.err

    return runner


@pytest.fixture
def quick_verification(monkeypatch):
    """Verifies on a tenth of the noise, for tests of what is done with a verdict and not of what it detects."""
    monkeypatch.setattr("sordino.verification.noise_checks._MOST_STEPS", 40)
    monkeypatch.setattr("sordino.verification.noise_checks._DRAWS_FOR_RESOLUTION", 1 << 16)


def pytest_terminal_summary(terminalreporter):
    """Prints the mutation score: the number of planted bugs that a check detected."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    mutants = [r for r in reports if "test_the_mutant_is_caught" in r.nodeid and r.when == "call"]
    if mutants:
        caught = sum(report.passed for report in mutants)
        terminalreporter.write_line(f"mutation score: {caught} of {len(mutants)} planted bugs caught")
