"""Fifteen panels of accuracy against the final rate: what each promises, and what is said of gains and equal noise."""

from __future__ import annotations

import json

import pytest
from made_up import noise_for_pictures, told

from sordino.data import root
from sordino_papers.harness.entry import RunScale
from sordino_papers.sparsification.panels import equal_noise
from sordino_papers.sparsification.tradeoff import SETTINGS, SPARSIFICATION_TRADEOFF, panels, worth


def rate_of(entry):
    return float(entry.method.partition("rate ")[2].partition(",")[0])


def test_what_has_noise_and_a_clip_is_worth_an_epsilon_and_nothing_else_is():
    for panel in panels(RunScale.QUICK):
        epsilons = {entry.epsilon for entry in panel.entries}
        assert (epsilons == {None}) == (panel.noise is None)
        assert all(("not private" in entry.method) == (entry.epsilon is None) for entry in panel.entries)


def test_epsilon_is_rounded_up_from_what_is_proved_and_falls_with_noise():
    setting = SETTINGS[RunScale.QUICK]
    trial, examples = setting.trial, setting.part.examples
    proved = trial.plan(trial.poisson(examples), 2.0, examples).guarantee(delta=1e-5).epsilon
    assert proved <= worth(trial, examples, 2.0) < 1.01 * proved
    assert worth(trial, examples, 1.0) > worth(trial, examples, 2.0) > worth(trial, examples, 4.0)


@pytest.mark.parametrize(("scale", "parameters"), [(RunScale.CPU, 26_010), (RunScale.PAPER, 550_570)])
def test_noise_weighs_as_much_at_either_scale(scale, parameters):
    trial, examples = SETTINGS[scale].trial, SETTINGS[scale].part.examples
    assert parameters / trial.batch_size**2 == pytest.approx(0.6, abs=0.06)
    assert trial.steps(examples) / trial.batch_size**2 == pytest.approx(0.005)


@pytest.mark.parametrize("place", [0, -3, -1], ids=["both", "clip alone", "noise alone"])
def test_an_entry_of_each_kind_trains(place, monkeypatch, tmp_path):
    noise_for_pictures(monkeypatch, tmp_path)
    entry = SPARSIFICATION_TRADEOFF.entries(RunScale.QUICK)[place]
    found = entry.measure(0)
    assert 0 <= found.value <= 100
    if entry.epsilon is None:
        assert found.more == {"private": False}
    else:
        assert found.more["epsilon"] <= entry.epsilon


def test_the_side_says_what_the_largest_and_the_best_rate_gain(tmp_path):
    gains = {0.0: 0.0, 0.3: 1.0, 0.6: 2.0, 0.9: -1.0}
    entries = SPARSIFICATION_TRADEOFF.entries(RunScale.CPU)
    told(entries, tmp_path, lambda entry, seed: 50.0 + seed + gains[rate_of(entry)] * (1 + 0.1 * seed), seeds=2)
    side, _ = SPARSIFICATION_TRADEOFF.sides(RunScale.CPU, 2, tmp_path)
    assert side.lines[1][2:] == ("-1.1 ± 0.6", "0.6", "+2.1 ± 1.3")
    assert "flatters" in side.title
    kept = json.loads((tmp_path / "tradeoff-cpu.json").read_text())["panels"]
    assert len(kept) == 15 and kept[0]["gains"] == pytest.approx([0.0, 1.05, 2.1, -1.05])
    assert (tmp_path / "tradeoff-cpu.svg").read_bytes().startswith(b"<?xml")


def test_cells_of_equal_noise_agree_or_not(tmp_path):
    """Gains of 1 in all cells but one, which gains 9."""

    def accuracy(entry, seed):
        gained = 9.0 if entry.method.startswith("sigma 4, C 0.5,") else 1.0
        return 50.0 + seed + (gained + 0.01 * seed if rate_of(entry) else 0.0)

    told(SPARSIFICATION_TRADEOFF.entries(RunScale.QUICK), tmp_path, accuracy, seeds=3)
    side = equal_noise(panels(RunScale.QUICK), 3, tmp_path)
    agreement = {(line[0], line[1], line[2]): line[-1] for line in side.lines[1:]}
    assert agreement == {
        ("0.5", "sigma 2, C 0.25", "sigma 1, C 0.5"): "yes",
        ("1", "sigma 4, C 0.25", "sigma 2, C 0.5"): "yes",
        ("1", "sigma 4, C 0.25", "sigma 1, C 1"): "yes",
        ("1", "sigma 2, C 0.5", "sigma 1, C 1"): "yes",
        ("2", "sigma 4, C 0.5", "sigma 2, C 1"): "no",
    }


def test_one_seed_says_nothing_about_agreement_and_none_says_nothing_at_all(tmp_path):
    assert {line[-1] for line in equal_noise(panels(RunScale.QUICK), 1, tmp_path).lines[1:]} == {"-"}
    told(SPARSIFICATION_TRADEOFF.entries(RunScale.QUICK), tmp_path, lambda entry, seed: 50.0)
    side = equal_noise(panels(RunScale.QUICK), 1, tmp_path)
    assert {line[-1] for line in side.lines[1:]} == {"unknown: one seed"}


@pytest.mark.skipif(not (root() / "fashion-mnist").is_dir(), reason="needs Fashion-MNIST in the data folder")
def test_a_quick_entry_learns_real_pictures():
    clipped = next(
        entry for entry in SPARSIFICATION_TRADEOFF.entries(RunScale.QUICK) if "no noise, C 1" in entry.method
    )
    assert clipped.measure(0).value > 40
