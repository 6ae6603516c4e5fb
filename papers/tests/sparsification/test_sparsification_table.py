"""The table of random sparsification: which trainings it is made of, and what it says of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch

from sordino.data.standard import is_complete, root
from sordino.errors import UsageError
from sordino.recipes.defaults import defaults_for
from sordino.training import checkpoint
from sordino.training.loop import Training
from sordino_papers.harness.entry import Entry, Measurement, RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.harness.rows import network_rows
from sordino_papers.harness.table import gain
from sordino_papers.harness.training import unfinished
from sordino_papers.sparsification.table import (
    FRAMEWORKS,
    HOUSE_NUMBERS,
    NONE,
    RANDOM,
    SEARCHED,
    SPARSIFICATION,
    USUAL_EPSILON,
    Choice,
)

needs_clothes = pytest.mark.skipif(not is_complete("fashion-mnist", root()), reason="Fashion-MNIST is not there")


def test_every_point_of_the_search_keeps_the_clip_over_one_minus_the_momentum():
    for framework in FRAMEWORKS:
        usual = framework.usual.clip / (1 - framework.usual.momentum)
        for choice in (*SEARCHED[NONE], *SEARCHED[RANDOM]):
            trial = choice.of(framework.usual)
            assert trial.clip / (1 - trial.momentum) == pytest.approx(usual)


def test_with_and_without_sparsification_get_the_same_search_and_at_most_six_points():
    clips_and_epochs = {kind: [(choice.clip, choice.longer) for choice in SEARCHED[kind]] for kind in (NONE, RANDOM)}
    assert clips_and_epochs[NONE] == clips_and_epochs[RANDOM]
    assert len(SEARCHED[NONE]) + len(SEARCHED[RANDOM]) <= 6
    assert not any(choice.final_rate for choice in SEARCHED[NONE])
    assert all(choice.final_rate in (0.5, 0.7, 0.9) for choice in SEARCHED[RANDOM])


@pytest.mark.parametrize("framework", [*FRAMEWORKS, *HOUSE_NUMBERS], ids=lambda one: f"{one.title} {one.data}")
def test_only_one_of_a_pair_is_sparsified(framework):
    for place in (0, 1):
        assert framework.chosen[NONE][place].final_rate == 0
        assert framework.chosen[RANDOM][place].final_rate > 0


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda one: one.title)
def test_a_recipe_trains_by_itself_as_the_table_does_without_masks(framework):
    trial = framework.trial(framework.chosen[NONE][0], USUAL_EPSILON)
    settings = defaults_for(trial.network, examples=60_000, epsilon=USUAL_EPSILON)
    by_recipe = (settings.batch_size, settings.epochs, settings.learning_rate, settings.clip, settings.momentum)
    assert by_recipe == (trial.batch_size, trial.epochs, trial.learning_rate, trial.clip, trial.momentum)
    assert (settings.averaging, settings.optimizer, settings.schedule) == (trial.averaging, "sgd", "constant")


def test_house_numbers_are_left_to_the_paper_scale():
    data = {scale: {entry.data for entry in SPARSIFICATION.entries(scale)} for scale in RunScale}
    assert "svhn" in data[RunScale.PAPER]
    assert "svhn" not in data[RunScale.QUICK] | data[RunScale.CPU]


@needs_clothes
def test_a_halved_trial_is_the_same_but_for_its_products():
    rows = network_rows("fashion-mnist", "dp-cnn-s", examples=500)
    trial = replace(Choice(0.5).of(FRAMEWORKS[0].usual), batch_size=100, epochs=1.0)
    halved = replace(trial, precision="bfloat16")
    one, other = (each.fitted(rows, 3.0, 0) for each in (trial, halved))
    assert one.guarantee.epsilon == other.guarantee.epsilon
    pairs = zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True)
    assert all(0 < float((a - b).norm() / a.norm()) < 0.1 for a, b in pairs)


def test_steps_shrink_with_epsilon():
    framework, choice = FRAMEWORKS[0], Choice(0.1)
    assert framework.trial(choice, 1.0).learning_rate == pytest.approx(framework.trial(choice, 3.0).learning_rate / 3)


def test_a_choice_can_stretch_the_steps_and_nothing_else_and_says_so():
    framework, usual = FRAMEWORKS[0], Choice(0.5, 1.2, 0.7)
    stretched = replace(usual, stretched=1.5)
    one, other = (framework.trial(choice, 1.0) for choice in (usual, stretched))
    assert other == replace(one, learning_rate=pytest.approx(1.5 * one.learning_rate))
    assert str(stretched) == f"{usual}, steps 1.5 x as long"


def entry(method: str, **settings: object) -> Entry:
    return Entry(method, "rows", 1.0, "zero-out", settings, lambda seed: Measurement(0.0))


def test_a_gain_is_paired_by_seed(tmp_path):
    results, one, other = ResultsFile(tmp_path / "runs.jsonl"), entry("none"), entry("RS")
    for seed, value in enumerate([80.0, 60.0, 70.0]):  # they differ by twenty points, the gain by two tenths
        results.add(one, seed=seed, measured=Measurement(value), seconds=1.0, origin={})
        results.add(other, seed=seed, measured=Measurement(value + 1 + 0.1 * seed), seconds=1.0, origin={})
    found = gain(one, other, results, seeds=3)
    assert found.mean == pytest.approx(1.1)
    assert found.half_width == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)


def test_a_seed_that_only_one_was_run_with_is_left_out_of_the_gain(tmp_path):
    results, one, other = ResultsFile(tmp_path / "runs.jsonl"), entry("none"), entry("RS")
    for seed in (0, 1):
        results.add(one, seed=seed, measured=Measurement(50.0), seconds=1.0, origin={})
    results.add(other, seed=1, measured=Measurement(52.0), seconds=1.0, origin={})
    found = gain(one, other, results, seeds=5)
    assert (found.mean, found.half_width, found.seeds) == (2.0, None, 1)


def test_nothing_in_common_is_no_gain(tmp_path):
    found = gain(entry("none"), entry("RS"), ResultsFile(tmp_path / "runs.jsonl"), seeds=2)
    assert (found.mean, found.shown) == (None, "-")


def test_a_part_of_the_table_that_is_not_there_is_refused_before_anything_is_run(tmp_path):
    with pytest.raises(UsageError, match="only must be a part of an entry's name"):
        reproduce(SPARSIFICATION, tmp_path / "x", scale=RunScale.QUICK, seeds=1, only="imagenet", progress=False)
    assert not (tmp_path / "x").exists()


@needs_clothes
def test_left_out_rows_are_neither_trained_on_nor_test_rows():
    everything = network_rows("fashion-mnist", "dp-cnn-s", examples=None)
    rows = network_rows("fashion-mnist", "dp-cnn-s", left_out=10_000)
    measured_on = rows.test.records.gather(torch.arange(10_000)).target
    assert len(rows) == len(everything) - 10_000
    assert (rows.target == everything.target[:50_000]).all()
    assert (measured_on == everything.target[50_000:]).all()


@needs_clothes
def test_part_of_the_quick_table_runs_and_the_page_has_every_entry(tmp_path):
    found = reproduce(
        SPARSIFICATION,
        tmp_path,
        scale=RunScale.QUICK,
        seeds=1,
        only="DP-CNN/S, RS, fashion-mnist, epsilon 3",
        progress=False,
    )
    run = [row for row in found.rows if row.seeds]
    assert [(row.method, row.epsilon) for row in run] == [("DP-CNN/S, RS", 3.0)]
    assert run[0].more["epsilon"] <= 3.0
    assert len(found.rows) == len(SPARSIFICATION.entries(RunScale.QUICK))
    gains = json.loads((tmp_path / "gains-quick.json").read_text())
    assert {"command", "commit", "machine", "gains"} == set(gains)


def test_a_training_goes_on_only_where_it_can_be_repeated(monkeypatch):
    here = unfinished("rows", 0)
    assert unfinished("rows", 0) == here != unfinished("rows", 1)
    monkeypatch.setattr(checkpoint, "_sources", lambda: "changed since")
    assert unfinished("rows", 0) != here


def test_a_training_is_forgotten_once_its_outcome_is_kept(tmp_path):
    order: list[str] = []

    def measure(seed: int) -> Measurement:
        order.append("measured")
        return Measurement(1.0)

    def forget(seed: int) -> None:
        order.append("forgotten" if ResultsFile(tmp_path / "runs.jsonl").runs() else "lost")

    @dataclass
    class Table:
        name: str = "table"
        about: str = "One entry."

        def entries(self, scale):
            return [Entry("one", "rows", 1.0, "zero-out", {}, measure, forget=forget)]

        def sides(self, scale, seeds, folder):
            return []

    reproduce(Table(), tmp_path, scale=RunScale.QUICK, seeds=1, progress=False)
    assert order == ["measured", "forgotten"]


@needs_clothes
def test_a_training_that_was_stopped_goes_on_to_the_same_accuracy(tmp_path, monkeypatch):
    rows = network_rows("fashion-mnist", "dp-cnn-s", examples=1_000)
    trial = replace(Choice(0.5, final_rate=0.5).of(FRAMEWORKS[0].usual), batch_size=100, epochs=2.0)
    whole = trial.to_epsilon(rows, 3.0, 0)
    step, taken = Training.step, []

    def stopping(training: Training) -> None:
        if len(taken) == 14:
            raise KeyboardInterrupt
        taken.append(step(training))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Training, "step", stopping)
        trial.to_epsilon(rows, 3.0, 0, out=tmp_path / "training")
    assert trial.to_epsilon(rows, 3.0, 0, out=tmp_path / "training") == whole
