"""What was run is kept: every number of a table that is kept can still be had from the runs beside it."""

import json
import re
from pathlib import Path

import pytest

from sordino_papers.experiments import EXPERIMENTS
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.table import rows

RESULTS = Path(__file__).parents[3] / "results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_table_that_is_kept_follows_from_its_runs(name: str) -> None:
    """A setting whose key changes would run hours of training again without a word."""
    experiment, kept = EXPERIMENTS[name], json.loads((RESULTS / name / "table-cpu.json").read_text())
    entries = [*experiment.entries(RunScale.CPU), *experiment.ablation(RunScale.CPU)]
    results = ResultsFile(RESULTS / name / "runs.jsonl")
    found = {_place(vars(row)): (row.ours, row.seeds) for row in rows(entries, results, seeds=max(_seeds(kept)))}
    assert [found[_place(row)] for row in kept["rows"]] == [(row["ours"], row["seeds"]) for row in kept["rows"]]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.jsonl")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_kept_run_names_a_class(path: Path) -> None:
    """Keys are dictionaries of fields: what Python's `repr` writes of an object changes with its class."""
    for line in path.read_text().splitlines():
        run = json.loads(line)
        settings = run.get("settings", {})
        assert isinstance(settings, dict) and "(" not in json.dumps(settings)
        assert not re.search(r"\w\(|=", json.dumps(run.get("method", "")))


def test_the_kept_search_of_optimized_noise_is_found_by_its_keys() -> None:
    search = EXPERIMENTS["optimized-noise"].ablation(RunScale.CPU)
    found = rows(search, ResultsFile(RESULTS / "optimized-noise" / "runs.jsonl"), seeds=1)
    assert len(search) == 72 and [row.seeds for row in found] == [1] * 72


def _place(row: dict[str, object]) -> tuple[object, ...]:
    return row["method"], row["data"], row["epsilon"]


def _seeds(kept: dict[str, list[dict[str, int]]]) -> list[int]:
    return [row["seeds"] for row in kept["rows"]]
