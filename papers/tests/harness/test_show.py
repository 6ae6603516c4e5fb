"""`sordino reproduce NAME --show` trains nothing, measures nothing, needs no data, and shows what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch

from sordino.cli import commands
from sordino.kernel.run import PrivateRun
from sordino_papers.experiments import EXPERIMENTS
from sordino_papers.harness.entry import Entry, HasMeasuredSides, Measurement, RunScale
from sordino_papers.harness.page import NOT_COMPARABLE
from sordino_papers.harness.results_file import ResultsFile

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def nothing_is_trained(monkeypatch):
    """Data that is not there, and trainers that fail when they are called."""

    def fail(*arguments, **options):
        pytest.fail("something was trained or measured")

    monkeypatch.setenv("SORDINO_DATA", "/nonexistent")
    monkeypatch.setattr(PrivateRun, "__init__", fail)
    monkeypatch.setattr(torch.autograd, "backward", fail)
    monkeypatch.setattr("sordino_papers.harness.reproduce._run", fail)
    monkeypatch.setattr("sordino_papers.hidden_state.utility_law.measure_risk", fail)
    for experiment in EXPERIMENTS.values():
        if isinstance(experiment, HasMeasuredSides):
            monkeypatch.setattr(type(experiment), "measure_sides", fail)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_table_that_is_kept_is_shown_with_its_sides(name, run, nothing_is_trained):
    shown, kept = run("reproduce", name, "--show", "--out", RESULTS), (RESULTS / name / "table-cpu.json").read_text()
    assert "Scale cpu. Means of seeds with 1.96 standard errors" in shown
    assert "not measured yet" not in shown and "not comparable" not in shown
    for row in json.loads(kept)["rows"]:
        assert row["method"] in shown and (row["ours"] is None or f"{row['ours']:.1f}" in shown)
    if isinstance(EXPERIMENTS[name], HasMeasuredSides):  # the kept page was written when they were measured
        page = (RESULTS / name / "table-cpu.md").read_text().splitlines()
        rows = [" ".join(line.replace(" | ", " ").strip("| ").split()) for line in page if line.startswith("| ")]
        assert len(rows) > 10 and set(rows) <= {" ".join(line.split()) for line in shown.splitlines()}


@pytest.mark.parametrize("name", [name for name, each in EXPERIMENTS.items() if isinstance(each, HasMeasuredSides)])
def test_sides_that_were_not_measured_say_so(name, run, nothing_is_trained, tmp_path):
    shown = run("reproduce", name, "--show", "--out", tmp_path)
    assert "Scale quick." in shown
    assert ("not measured yet" in shown) == (name != "feature-to-noise")  # which has no sides before it has runs


@pytest.mark.parametrize(
    ("scales", "expected"),
    [((), "quick"), (("quick",), "quick"), (("quick", "cpu"), "cpu"), (("paper", "quick"), "paper")],
)
def test_without_a_scale_the_largest_that_has_runs_is_shown(scales, expected, run, tmp_path):
    results = ResultsFile(tmp_path / "adult" / "runs.jsonl")
    for seed, scale in enumerate(scales):
        entry = Entry("linear", "digits", 1.0, "zero-out", {}, lambda seed: Measurement(0.0))
        origin = {"command": f"sordino reproduce adult --scale {scale} --seeds 1"}
        results.add(entry, seed=seed, measured=Measurement(0.0), seconds=1.0, origin=origin)
    found = json.loads(run("reproduce", "adult", "--show", "--json", "--out", tmp_path))
    assert found["scale"] == expected


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_row_of_a_quick_table_says_that_it_is_not_comparable(name, run, nothing_is_trained, tmp_path):
    shown = run("reproduce", name, "--show", "--scale", "quick", "--out", tmp_path)
    assert shown.startswith("Scale quick: few rows and few steps") and "not comparable with the" in shown
    entries = EXPERIMENTS[name].entries(RunScale.QUICK)
    rows = [line for line in shown.splitlines() if NOT_COMPARABLE in line]
    assert len(rows) >= len(entries)
    for row, entry in zip(rows, entries, strict=False):
        assert row.startswith(entry.method) and (entry.paper is None or f" {entry.paper:.1f} " not in row)


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("scale", list(RunScale))
def test_a_table_of_which_nothing_was_run_is_shown_at_every_scale(name, scale, run, nothing_is_trained, tmp_path):
    shown = run("reproduce", name, "--show", "--ablate", "--scale", scale, "--out", tmp_path)
    assert f"Scale {scale}. Means of seeds" in shown and not list(tmp_path.iterdir())


def test_without_the_package_the_command_says_what_to_install(monkeypatch, refused):
    monkeypatch.setattr(commands, "entry_points", lambda group: entry_points(group="of.nothing"))
    for arguments in (("hidden-state", "--show"), ("--help",), ()):
        assert "run `pip install -e papers`" in refused("reproduce", *arguments)


def test_the_help_lists_every_experiment_with_a_summary_of_at_most_80_columns(run):
    lines = run("reproduce", "--help").splitlines()
    described = {line.split()[0]: line for line in lines if line.startswith("    ") and line.split()[0] in EXPERIMENTS}
    assert list(described) == list(EXPERIMENTS)
    assert all(len(line) <= 80 and len(line.split()) > 2 for line in described.values())


@pytest.mark.slow
def test_the_package_can_be_imported_before_the_command_line():
    """In a process of its own: whoever imports the experiments first must not meet half a module."""
    code = "import sordino_papers.experiments as e; print(len(e.EXPERIMENTS))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert int(found.stdout) == len(EXPERIMENTS)
