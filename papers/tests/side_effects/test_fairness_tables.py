"""The tables on real data: what stands in them, what is measured, and what is shown before anything is run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from made_up import pictures_of, told

from sordino.data import root
from sordino.effects import rare_examples
from sordino.encodings import Combined, FreezeByMagnitude
from sordino.kernel.encoding import Unchanged
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.rows import network_rows
from sordino_papers.harness.training import FreezingStages, Sparsity
from sordino_papers.side_effects import class_size, image_sets, rotation, trials
from sordino_papers.side_effects.adult import ADULT, GROUPS, ROWS, by_group
from sordino_papers.side_effects.augmentation import AUGMENTATION
from sordino_papers.side_effects.class_size import CLASS_SIZE
from sordino_papers.side_effects.freezing import FREEZING
from sordino_papers.side_effects.image_sets import ImageSet, Padding
from sordino_papers.side_effects.padding import PADDING
from sordino_papers.side_effects.rotation import COLOUR, GREY, ROTATION, PublicTraining
from sordino_papers.side_effects.trials import ADVERSARIAL, LENET, quick, with_attack, within, without_privacy
from sordino_papers.side_effects.vit_padding import TRIALS, VIT_PADDING

TABLES = (PADDING, ROTATION, CLASS_SIZE, VIT_PADDING, FREEZING, AUGMENTATION, ADULT)
EVERY = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
FEW = with_attack(quick(LENET), examples=20, attack=replace(within(0.1), steps=3))
TINY = replace(FEW, batch_size=50, epochs=1.0)


@pytest.fixture
def made_up(monkeypatch, tmp_path):
    for module in (image_sets, class_size, rotation):
        monkeypatch.setattr(module, "load", lambda name: pictures_of(rows=200, public=60))
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    yield ImageSet("mnist")
    image_sets._rows.cache_clear()
    rotation._learnt.cache_clear()


@EVERY
@pytest.mark.parametrize("scale", list(RunScale))
def test_entries_differ_and_only_what_is_private_has_an_epsilon(table, scale) -> None:
    entries = [*table.entries(scale), *table.ablation(scale)]
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert (entry.epsilon is None) == (entry.adjacency is None) == ("no privacy" in entry.method)


@EVERY
def test_few_rows_are_not_put_beside_the_paper(table) -> None:
    assert {entry.paper for entry in table.entries(RunScale.QUICK)} == {None}


@EVERY
def test_sides_are_shown_before_anything_is_run(table, tmp_path) -> None:
    (side,) = table.sides(RunScale.CPU, 1, tmp_path)
    assert all(path.exists() for path in side.files)


def test_the_attack_is_the_same_in_every_table_of_grey_pictures() -> None:
    attacked = (LENET, GREY.tuned, GREY.scratch, *TRIALS.values())
    assert {trial.measurement.attack for trial in attacked} == {within(trials.RADIUS)}


def test_the_side_has_means_losses_and_the_papers_numbers_under_attack(tmp_path) -> None:
    entries = PADDING.entries(RunScale.CPU)
    told(entries, tmp_path, lambda one, seed: 90.0 - entries.index(one) - seed, seeds=2, more={ADVERSARIAL: 50.0})
    (side,) = PADDING.sides(RunScale.CPU, 2, tmp_path)
    assert side.lines[1][1:] == ("0", "89.5", "97.0", "-", "50.0", "95.0", "2")
    assert side.lines[5][1:] == ("75", "85.5", "86.0", "-4.0 ± 0.0", "50.0", "1.0", "2")
    assert side.lines[6][1:] == ("0", "84.5", "-", "-", "50.0", "-", "2")
    kept = json.loads((tmp_path / "accuracy-cpu.json").read_text())["points"]
    assert len(kept) == 10 and kept[0]["adversarial"] == 50.0 and kept[0]["paper_adversarial"] == 95.0


def test_what_freezing_gains_is_paired_by_seed(tmp_path) -> None:
    told(FREEZING.entries(RunScale.CPU), tmp_path, lambda one, seed: seed + 2.0 * ("frozen" in one.method), seeds=3)
    (side,) = FREEZING.sides(RunScale.CPU, 3, tmp_path)
    assert side.lines[1] == ("LeNet, frozen", "mnist", "3", "+1.6", "+2.0 ± 0.0", "3")


def test_a_trial_is_attacked_within_the_range_of_pictures(made_up) -> None:
    rows = made_up.rows(TINY)
    found = TINY.to_epsilon(rows, 3.0, seed=0)
    model = TINY.fitted(rows, 3.0, 0).model
    nearly_nothing = with_attack(TINY, attack=within(1e-9), examples=60).more_of(model, rows, 0)[ADVERSARIAL]
    assert nearly_nothing == pytest.approx(found.value)
    assert with_attack(TINY, attack=replace(within(1.0), step=1.0)).more_of(model, rows, 0)[ADVERSARIAL] == 0
    assert found.more["epsilon"] <= 3.0 and found.more[ADVERSARIAL] <= 100


def test_attacks_of_several_radii_are_kept_by_radius(made_up) -> None:
    found = with_attack(TINY, more_attacks=(within(0.01), within(0.5))).to_epsilon(made_up.rows(TINY), 3.0, 0).more
    assert found[f"{ADVERSARIAL}, radius 0.5"] <= found[f"{ADVERSARIAL}, radius 0.01"]


def test_stages_cut_the_steps_into_equal_parts(made_up) -> None:
    trial = replace(TINY, epochs=4.0, freezing=FreezingStages(3, final=0.6))
    model = trial.build(made_up.rows(trial).facts, 0)
    found = trial.encoding_of(model, 200)
    assert isinstance(found, FreezeByMagnitude) and found.stages == (4, 8, 12) and found.model is model
    both = replace(trial, sparsity=Sparsity(0.5)).encoding_of(model, 200)
    assert isinstance(both, Combined) and isinstance(both.first, FreezeByMagnitude)
    assert replace(trial, freezing=None).encoding_of(model, 200) == Unchanged()


def test_the_frozen_share_of_a_trained_network_is_that_of_the_paper(made_up) -> None:
    trial = replace(TINY, freezing=FreezingStages(1, 0.77, prune=True))
    model = trial.fitted(made_up.rows(trial), 3.0, 0).model
    zeros = sum(int((x == 0).sum()) for x in model.parameters())
    assert zeros == round(0.77 * 61_706)


def test_a_trial_that_ended_is_read_and_attacked_again(made_up, tmp_path) -> None:
    trial = replace(TINY, freezing=FreezingStages(2, 0.77))
    first = trial.to_epsilon(made_up.rows(trial), 3.0, 0, tmp_path / "run")
    assert trial.to_epsilon(made_up.rows(trial), 3.0, 0, tmp_path / "run") == first


def test_tuning_begins_where_public_rows_led(made_up, monkeypatch) -> None:
    facts = made_up.rows(LENET).facts
    monkeypatch.setattr(rare_examples, "_FEWEST_STEPS", 5)
    trial = replace(GREY.tuned, start=PublicTraining("mnist", examples=100))
    learnt = trial.start.weights("lenet", facts, 3)
    assert all(torch.equal(learnt[name], x) for name, x in trial.build(facts, 3).state_dict().items())
    scratch = GREY.scratch.build(facts, 3).state_dict()
    assert not any(torch.equal(learnt[name], x) for name, x in scratch.items())


def test_without_privacy_nothing_is_promised(made_up) -> None:
    found = without_privacy(TINY, made_up.rows(TINY), 0)
    assert set(found.more) == {ADVERSARIAL}
    assert found.value > TINY.to_epsilon(made_up.rows(TINY), 3.0, 0).value - 20


def test_a_quick_table_is_run_and_goes_on_without_running_again(made_up, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(class_size, "quick", lambda trial: TINY)
    done = reproduce(CLASS_SIZE, tmp_path / "class-size", scale=RunScale.QUICK, seeds=1, progress=False)
    assert [row.seeds for row in done.rows] == [1] * 4 and not list((tmp_path / "trainings").iterdir())
    monkeypatch.setattr(trials, "robust_accuracy", None)
    again = reproduce(CLASS_SIZE, tmp_path / "class-size", scale=RunScale.QUICK, seeds=1, progress=False)
    assert [row.ours for row in again.rows] == [row.ours for row in done.rows]


def test_what_each_group_lost_is_shown_beside_what_it_had(tmp_path) -> None:
    entries = ADULT.entries(RunScale.CPU)
    for entry, female in zip(entries, (90.0, 88.0, 87.0, 80.0), strict=True):
        more = {GROUPS: {"sex: Female": female, "sex: Male": 80.0}, ROWS: {"sex: Female": 9, "sex: Male": 3}}
        told([entry], tmp_path, lambda one, seed: 85.0, more=more)
    (side,) = ADULT.sides(RunScale.CPU, 1, tmp_path)
    assert side.lines[0] == ("group", "test rows", "no privacy", "epsilon 3", "epsilon 1", "epsilon 0.3")
    assert side.lines[1] == ("sex: Female", "9", "90.0", "-2.0", "-3.0", "-10.0")
    assert json.loads((tmp_path / "groups-cpu.json").read_text())[GROUPS]["sex: Male"] == [80.0] * 4


@pytest.mark.skipif(not (root() / "adult").is_dir(), reason="needs Adult in the data folder")
def test_groups_of_adult_add_up_to_all_test_rows() -> None:
    rows = network_rows("adult", "mlp", examples=2_000)
    model = torch.nn.Linear(105, 2)
    found = by_group(model, rows)
    batch = rows.test.records.gather(torch.arange(2_000))
    right = int((model(batch.inputs[0]).argmax(1) == batch.target).sum())
    for column, groups in (("sex", 2), ("race", 5)):
        names = [name for name in found[GROUPS] if name.startswith(column)]
        assert len(names) == groups and sum(found[ROWS][name] for name in names) == 2_000
        assert sum(found[GROUPS][name] * found[ROWS][name] for name in names) == pytest.approx(100 * right)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="needs MNIST in the data folder")
def test_padding_takes_accuracy_from_real_digits() -> None:
    first, *_, last = [entry for entry in PADDING.entries(RunScale.QUICK) if entry.data == "mnist"]
    assert first.measure(0).value > last.measure(0).value + 20
    for entry in (first, last):
        entry.forget(0)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="needs MNIST in the data folder")
def test_public_digits_help_less_the_more_private_ones_are_turned_and_then_hurt() -> None:
    tuned_on, scratch = ([point.entry for point in line] for line in GREY.lines(RunScale.QUICK).values())
    by_angle = [entry.measure(0).value for entry in tuned_on]
    upright, turned = (entry.measure(0).value for entry in (scratch[0], scratch[-1]))
    assert by_angle == sorted(by_angle, reverse=True)
    assert by_angle[0] > upright + 20 and by_angle[-1] < turned - 5
    for entry in (*tuned_on, scratch[0], scratch[-1]):
        entry.forget(0)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="needs MNIST in the data folder")
def test_a_class_of_few_real_digits_is_lost() -> None:
    few, *_, many = CLASS_SIZE.entries(RunScale.QUICK)
    assert many.measure(0).value > few.measure(0).value + 30
    for entry in (few, many):
        entry.forget(0)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="needs MNIST in the data folder")
def test_padding_takes_robustness_from_a_transformer_before_it_takes_accuracy() -> None:
    """At an epsilon of 20, because so few rows teach a transformer nothing at 3."""
    trial = with_attack(TRIALS[RunScale.CPU], examples=200)
    half, most = (
        trial.to_epsilon(ImageSet("mnist", Padding(pixels), 6_000).rows(trial), 20.0, 0) for pixels in (14, 42)
    )
    assert half.more[ADVERSARIAL] > most.more[ADVERSARIAL] + 15
    assert abs(half.value - most.value) < 10


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "cifar10").is_dir(), reason="needs CIFAR-10 in the data folder")
def test_public_colour_pictures_help_less_the_more_private_ones_are_turned() -> None:
    tuned_on, _ = ([point.entry for point in line] for line in COLOUR.lines(RunScale.QUICK).values())
    upright, turned = (entry.measure(0).value for entry in (tuned_on[0], tuned_on[-1]))
    assert upright > turned + 3
    for entry in (tuned_on[0], tuned_on[-1]):
        entry.forget(0)
