"""The page of the table says what its result files say, and the result files say how they were made."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.table import rows
from sordino_papers.hidden_state import HIDDEN_STATE

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results" / "hidden-state"
PAGE = (ROOT / "papers" / "sordino_papers" / "hidden_state" / "FINDINGS.md").read_text()
TABLE = json.loads((RESULTS / "table-cpu.json").read_text())


@pytest.mark.parametrize("row", TABLE["rows"], ids=lambda row: f"{row['method']}, {row['data']}, {row['epsilon']}")
def test_every_cell_of_the_table_is_measured(row):
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row['method']} | ") and "±" in line]
    place = {("mnist", 1.33): 2, ("mnist", 4.76): 3, ("cifar10", 1.33): 4, ("cifar10", 4.76): 5}
    cell = f"{row['ours']:.1f} ± {1.96 * row['sem']:.1f}"
    printed = "" if row["paper"] is None else f" ({row['paper']:.1f})"
    assert line.split(" | ")[place[row["data"], row["epsilon"]] - 1].strip(" |") == cell + printed


def test_the_table_is_that_of_the_runs_that_are_kept():
    found = rows(
        HIDDEN_STATE.entries(RunScale.CPU), ResultsFile(RESULTS / "runs.jsonl"), seeds=TABLE["rows"][0]["seeds"]
    )
    assert [row.json() for row in found] == TABLE["rows"]


def test_every_run_promises_at_most_the_epsilon_of_its_row():
    for run in ResultsFile(RESULTS / "runs.jsonl").runs():
        assert 0.99 * run["epsilon"] < run["more"]["epsilon_replace_one"] <= run["epsilon"]
        assert {"command", "commit", "machine"} <= set(run)


def test_curves_batches_and_laws_are_measured():
    for curve in json.loads((RESULTS / "epsilon-cpu.json").read_text())["curves"]:
        epsilons = dict(zip(curve["epochs"], curve["epsilons"], strict=True))
        cells = [curve["method"], f"{curve['setting']['noise_multiplier']:g}"]
        cells += [f"{math.ceil(1000 * epsilons[epochs]) / 1000:.3f}" for epochs in (1, 50, 150, 400)]  # rounded up
        assert "| " + " | ".join(cells) + " |" in PAGE
    for sampler in json.loads((RESULTS / "batches.json").read_text())["samplers"]:
        assert f"| {sampler['sampler']} | {sampler['smallest']} to {sampler['largest']} |" in PAGE
    for law in json.loads((RESULTS / "utility-cpu.json").read_text())["laws"]:
        power = law["in_both"]
        shown = f"{power['value']:.2f} ({power['low']:.2f} to {power['high']:.2f})"
        assert f"| {law['method']} | {law['risk']} | {shown} |" in PAGE


def test_the_cost_of_a_step_is_measured():
    (row,) = json.loads((ROOT / "results" / "bench_gated_1000.json").read_text())["rows"]
    assert (row["model"], row["batch_size"]) == ("gated-relu", 1000)
    page = " ".join((ROOT / "docs" / "hidden-state.md").read_text().split())
    assert f"takes {row['ratio_to_plain']:.2f} times a plain one" in page


def test_epsilons_in_the_table_of_hidden_states_are_rounded_up():
    curves = json.loads((ROOT / "results/hidden-state/epsilon-cpu.json").read_text())["curves"]
    exact = {
        (curve["method"], epochs, curve["setting"]["noise_multiplier"]): epsilon
        for curve in curves
        for epochs, epsilon in zip(curve["epochs"], curve["epsilons"], strict=True)
    }
    rows = re.findall(r"^\| ([a-zA-Z, ]+) \| (\d+)" + 4 * r" \| ([\d.]+)" + r" \|$", PAGE, re.MULTILINE)
    assert len(rows) == len(curves)
    for method, multiplier, *printed in rows:
        for epochs, text in zip((1, 50, 150, 400), printed, strict=True):
            epsilon = exact[method, epochs, float(multiplier)]
            assert epsilon <= float(text) < epsilon + 0.0011, (method, multiplier, epochs)
