"""What was run is kept: every number of a table that is kept can still be had from the runs beside it."""

import json
from pathlib import Path

import pytest

from sordino_papers.command import EXPERIMENTS
from sordino_papers.harness.ledger import Ledger
from sordino_papers.harness.scale import Scale
from sordino_papers.harness.table import rows

RESULTS = Path(__file__).parents[3] / "results"
TABLES = sorted(RESULTS.glob("*/table-cpu.json"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_a_table_that_is_kept_follows_from_its_runs(path: Path) -> None:
    """A setting that is written in another way, or a new one, would run hours of training again without a word."""
    experiment, kept = EXPERIMENTS[path.parent.name], json.loads(path.read_text())
    entries = [*experiment.entries(Scale.CPU), *experiment.ablation(Scale.CPU)]
    ledger = Ledger(path.parent / "runs.jsonl")
    found = {_place(vars(row)): (row.ours, row.seeds) for row in rows(entries, ledger, seeds=max(_seeds(kept)))}
    assert [found[_place(row)] for row in kept["rows"]] == [(row["ours"], row["seeds"]) for row in kept["rows"]]


def test_there_are_tables_to_look_at() -> None:
    assert len(TABLES) == len(EXPERIMENTS)


def _place(row: dict[str, object]) -> tuple[object, ...]:
    return row["method"], row["data"], row["epsilon"]


def _seeds(kept: dict[str, list[dict[str, int]]]) -> list[int]:
    return [row["seeds"] for row in kept["rows"]]
