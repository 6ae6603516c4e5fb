"""Three ways to draw batches: each has the noise it says, and nothing is promised that is not proved."""

from __future__ import annotations

import json

import pytest
from made_up import noise_for_pictures, told

from sordino.data import root
from sordino_papers.harness import training_entries
from sordino_papers.harness.entry import RunScale
from sordino_papers.sparsification.sampling import SETTINGS, SPARSIFICATION_SAMPLING, partition, poisson_noise


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    noise_for_pictures(monkeypatch, tmp_path)


def entry(text):
    return next(one for one in SPARSIFICATION_SAMPLING.entries(RunScale.QUICK) if text in one.method)


@pytest.mark.parametrize("scale", [RunScale.QUICK, RunScale.CPU])
def test_a_stand_in_is_not_put_beside_the_paper(scale):
    assert {one.paper for one in SPARSIFICATION_SAMPLING.entries(scale)} == {None}


@pytest.mark.parametrize("scale", list(RunScale))
def test_a_partition_has_as_many_steps_as_poisson_sampling_and_sees_every_row_once_an_epoch(scale):
    setting = SETTINGS[scale]
    examples = setting.part.examples
    for trial in (setting.none, setting.sparse):
        drawn = partition(trial, examples)
        assert drawn.steps == trial.steps(examples)
        assert drawn.expected_batch_size(examples) == trial.batch_size


def test_what_is_accounted_as_something_else_promises_nothing_and_says_so():
    for one in SPARSIFICATION_SAMPLING.entries(RunScale.PAPER):
        assert (one.epsilon is None) == ("not guaranteed" in one.method)
        assert (one.epsilon is None) == (one.adjacency is None)


def test_a_partition_with_the_noise_of_poisson_sampling_is_proved_at_a_larger_epsilon(made_up):
    found = entry("not guaranteed, noise for 1, none").measure(0).more
    setting = SETTINGS[RunScale.QUICK]
    assert found["noise_multiplier"] == poisson_noise(setting.none, setting.part.examples, 1.0)
    assert 1.9 < found["epsilon"] < 2.1  # two Gaussian releases of multiplier 2.83


def test_a_partition_has_the_noise_of_its_own_accountant_and_leaves_no_folder(made_up, tmp_path):
    one = entry("partition, none")
    found = one.measure(0).more
    assert len(list((tmp_path / "trainings").iterdir())) == 1
    one.forget(0)
    assert not list((tmp_path / "trainings").iterdir())
    assert found["epsilon"] <= 3.0 < 1.01 * found["epsilon"]
    assert found["noise_multiplier"] > 1.4 * poisson_noise(SETTINGS[RunScale.QUICK].none, 1_000, 3.0)


def test_the_side_names_what_is_proved_and_the_gain_of_each_sampling(tmp_path):
    entries = SPARSIFICATION_SAMPLING.entries(RunScale.QUICK)
    proved = {"epsilon": 4.641, "noise_multiplier": 1.3444}
    told(entries, tmp_path, lambda one, seed: float("RS" in one.method), more=proved)
    (side,) = SPARSIFICATION_SAMPLING.sides(RunScale.QUICK, 1, tmp_path)
    assert side.lines[-1][1:] == ("none", "1.344", "4.65", "-", "+1.0")
    kept = json.loads((tmp_path / "sampling-quick.json").read_text())
    assert len(kept["samplings"]) == 6 and kept["samplings"][0]["proved"] == proved


def test_the_side_is_shown_before_anything_is_run(tmp_path):
    (side,) = SPARSIFICATION_SAMPLING.sides(RunScale.PAPER, 1, tmp_path)
    assert side.lines[1][1:] == ("3", "-", "-", "+1.8", "-")


@pytest.mark.skipif(not (root() / "fashion-mnist").is_dir(), reason="needs Fashion-MNIST in the data folder")
def test_a_quick_entry_learns_real_pictures(monkeypatch, tmp_path):
    monkeypatch.setattr(training_entries, "unfinished", lambda *decided_by: tmp_path / "training")
    assert entry("Poisson, RS").measure(0).value > 30
