"""Grids of clips and momenta: where the diagonal lies, and what is said of the best of rows and columns."""

from __future__ import annotations

import json

import pytest
import torch
from made_up import noise_for_pictures, told

from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.training import DpSgdTrial
from sordino_papers.sparsification.grid import best_of
from sordino_papers.sparsification.scaling_rule import SCALING_RULE, grids


def line_of(grid, name):
    return next(line for found, line in grid.lines() if found == name)


@pytest.mark.parametrize("scale", list(RunScale))
def test_the_diagonal_crosses_every_row_and_column_of_sgd_once_and_adam_has_none(scale):
    for grid in grids(scale):
        expected = 0 if "Adam" in grid.title else 1
        assert {sum(cell.on_diagonal for cell in line) for _, line in grid.lines()} == {expected}


def test_the_momentum_of_adam_is_its_first_beta():
    trial = DpSgdTrial("linear", 8, 1, learning_rate=0.01, clip=1.0, momentum=0.5, optimizer="adam")
    optimizer = trial.optimizer_for([torch.nn.Parameter(torch.zeros(2))])
    assert isinstance(optimizer, torch.optim.Adam) and optimizer.defaults["betas"] == (0.5, 0.999)


def test_the_best_of_a_row_is_compared_with_its_neighbours_seed_by_seed(tmp_path):
    (sgd, _), heights = grids(RunScale.CPU), {0.9: 70.0, 0.8: 71.0, 0.5: 75.0, 0.0: 60.0}
    momenta = {cell.entry.method: cell.momentum for cell in sgd.cells}
    entries = [cell.entry for cell in sgd.cells]
    told(entries, tmp_path, lambda entry, seed: heights[momenta[entry.method]] + 10 * seed, seeds=2)
    results = ResultsFile(tmp_path / "runs.jsonl")
    on_rule = best_of("C 0.5", line_of(sgd, "C 0.5"), sgd, results, 2)
    assert (on_rule.place, on_rule.on_diagonal) == ("mu 0.5", True)
    assert on_rule.over == ("+4.0 ± 0.0 over mu 0.8", "+15.0 ± 0.0 over mu 0")
    off_rule = best_of("C 1", line_of(sgd, "C 1"), sgd, results, 2)
    assert (off_rule.place, off_rule.on_diagonal) == ("mu 0.5", False)
    assert (on_rule.constant, off_rule.constant) == (1.0, 2.0)
    assert off_rule.over == ("-15.0 ± 0.0 over mu 0.5",)


def test_where_there_is_no_diagonal_the_best_is_compared(tmp_path):
    _, adam = grids(RunScale.QUICK)
    told([cell.entry for cell in adam.cells], tmp_path, lambda entry, seed: 50.0 + ("mu 0.9" in entry.method))
    found = best_of("C 1", line_of(adam, "C 1"), adam, ResultsFile(tmp_path / "runs.jsonl"), 1)
    assert (found.place, found.on_diagonal, found.over) == ("mu 0.9", None, ("+1.0 over mu 0",))


def test_the_side_has_a_line_for_every_row_and_column_and_a_picture(tmp_path):
    told(SCALING_RULE.entries(RunScale.CPU), tmp_path, lambda entry, seed: float(len(entry.method)))
    (side,) = SCALING_RULE.sides(RunScale.CPU, 1, tmp_path)
    assert len(side.lines) == 1 + 2 * (4 + 4)
    assert (tmp_path / "grid-cpu.svg").read_bytes().startswith(b"<?xml")
    kept = json.loads((tmp_path / "grid-cpu.json").read_text())["grids"]
    assert [len(grid["cells"]) for grid in kept] == [16, 16]


def test_a_grid_that_was_not_run_has_no_best_and_an_empty_picture(tmp_path):
    (side,) = SCALING_RULE.sides(RunScale.QUICK, 1, tmp_path)
    assert len(side.lines) == 1 and (tmp_path / "grid-quick.svg").exists()


@pytest.mark.parametrize("place", [0, -1], ids=["SGD", "Adam"])
def test_a_quick_entry_keeps_its_promise(place, monkeypatch, tmp_path):
    noise_for_pictures(monkeypatch, tmp_path)
    entry = SCALING_RULE.entries(RunScale.QUICK)[place]
    assert entry.measure(0).more["epsilon"] <= entry.epsilon == 3.0
