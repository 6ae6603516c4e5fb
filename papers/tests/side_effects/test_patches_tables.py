"""The tables of the world of patches, at sizes that take a moment."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sordino.training.not_private import NOT_PRIVATE
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.side_effects import disparity_causes, feature_to_noise, phase_transition, rotated_patches
from sordino_papers.side_effects.disparity_causes import DISPARITY_CAUSES, WorldSize
from sordino_papers.side_effects.feature_to_noise import FEATURE_TO_NOISE
from sordino_papers.side_effects.patch_experiment import PatchExperiment
from sordino_papers.side_effects.phase_transition import GRIDS, PHASE_TRANSITION, PhaseGrid
from sordino_papers.side_effects.rotated_patches import ROTATED_PATCHES
from sordino_papers.side_effects.two_patch_world import PatchDescent, TwoPatches

TABLES = (PHASE_TRANSITION, FEATURE_TO_NOISE, DISPARITY_CAUSES, ROTATED_PATCHES)


def made(table, folder, seeds=1):
    return reproduce(table, folder, scale=RunScale.QUICK, seeds=seeds, progress=False)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@pytest.mark.parametrize("scale", list(RunScale))
def test_entries_differ_and_promise_nothing(table, scale) -> None:
    entries = table.entries(scale)
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(entry.epsilon is None and entry.adjacency is None and entry.paper is None for entry in entries)


def test_a_map_shows_the_transition_and_where_it_lies(tmp_path, monkeypatch) -> None:
    small = PhaseGrid((0.05, 0.3, 1.0, 3.0), (0.005, 0.08), examples=60, dimension=60, filters=6)
    monkeypatch.setitem(GRIDS, RunScale.QUICK, small)
    found = made(PHASE_TRANSITION, tmp_path)
    (side,) = found.sides
    quiet, loud = ([float(cell) for cell in line[1:4]] for line in side.lines[1:])
    assert all(one < other for one, other in zip(quiet, loud, strict=True))
    picture, numbers = side.files
    assert picture.read_bytes().startswith(b"<?xml")
    accuracies = json.loads(numbers.read_text())["accuracies"]
    assert all(row[0] < 0.7 and row[-1] > 0.9 for row in accuracies)


def test_losses_by_group_stand_beside_ratios_and_what_saw_gradients_says_so(tmp_path, monkeypatch) -> None:
    bench = PatchExperiment(TwoPatches(dimension=40, patch_noise=0.2), examples=60, filters=5)
    monkeypatch.setitem(feature_to_noise.BENCHES, RunScale.QUICK, bench)
    monkeypatch.setitem(feature_to_noise.NOISE, RunScale.QUICK, (0.0, 0.02, 0.1))
    monkeypatch.setattr(feature_to_noise, "descent", lambda bench, std: PatchDescent(std, learning_rate=20.0, steps=30))
    found = made(FEATURE_TO_NOISE, tmp_path)
    losses, ratios = found.sides
    assert len(losses.lines) == 1 + 3 * 4 and losses.lines[1][2] == "-"
    assert all(float(line[5]) >= float(line[3]) for line in losses.lines[1:])
    assert "not private" in ratios.title and found.rows[0].method == "no noise, not private"
    measured = json.loads(ratios.files[0].read_text())["measured"]
    assert [one["warning"] for one in measured] == [NOT_PRIVATE] * 4


def test_each_cause_alone_takes_from_the_second_class(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(disparity_causes.SIZES, RunScale.QUICK, WorldSize(40, 0.2, 60, 5, noise_std=0.03))
    monkeypatch.setattr(disparity_causes, "NORMS", (1.0, 0.2))
    monkeypatch.setattr(disparity_causes, "SHARES", (0.5, 0.1))
    monkeypatch.setattr(disparity_causes, "CLIPS", (1.0, 0.01))
    monkeypatch.setattr(
        WorldSize, "descent", property(lambda size: PatchDescent(size.noise_std, learning_rate=20.0, steps=40))
    )
    found = made(DISPARITY_CAUSES, tmp_path)
    (side,) = found.sides
    losses = [float(line[5]) for line in side.lines[1:]]
    for least, most in zip(losses[::2], losses[1::2], strict=True):
        assert most > least


def test_a_turned_world_is_where_pre_training_helps_little_or_harms(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rotated_patches, "ANGLES", (0.0, 90.0))
    tuning = rotated_patches.TUNINGS[RunScale.QUICK]
    small = replace(tuning, bench=replace(tuning.bench, examples=80))
    monkeypatch.setitem(rotated_patches.TUNINGS, RunScale.QUICK, small)
    (side,) = made(ROTATED_PATCHES, tmp_path).sides
    straight, turned = (float(line[-1]) for line in side.lines[1:])
    assert straight < 0 < turned


def test_where_accuracy_is_reached_is_found_between_sizes() -> None:
    assert phase_transition.reached([1.0, 4.0], [0.5, 1.0], level=0.75) == pytest.approx(2.0)
    assert phase_transition.reached([1.0, 4.0], [0.8, 0.9], level=0.75) is None
    assert phase_transition.reached([1.0, 2.0, 4.0], [0.8, 0.7, 0.9], level=0.75) == pytest.approx(2 * 2**0.25)
