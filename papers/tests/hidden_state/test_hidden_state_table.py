"""The table of hidden states: every method of the poster is in it, and each entry promises what it says."""

from __future__ import annotations

import pytest

from sordino.data import root
from sordino_papers.harness.entry import RunScale
from sordino_papers.hidden_state import HIDDEN_STATE
from sordino_papers.hidden_state.table import DATA, EPSILONS, PAPER


@pytest.mark.parametrize("scale", list(RunScale))
def test_every_number_of_the_poster_has_its_entry(scale):
    entries = {(e.method, e.data, e.epsilon): e.paper for e in HIDDEN_STATE.entries(scale) if e.paper is not None}
    assert entries == {
        (method, data, epsilon): number
        for (method, data), numbers in PAPER.items()
        for epsilon, number in zip(EPSILONS, numbers, strict=True)
    }


def test_all_entries_are_for_one_adjacency_and_say_how_their_settings_were_chosen():
    entries = [*HIDDEN_STATE.entries(RunScale.CPU), *HIDDEN_STATE.ablation(RunScale.CPU)]
    assert {entry.adjacency for entry in entries} == {"replace-one"}
    assert all("public" in entry.chosen and "Epsilon does not count" in entry.chosen for entry in entries)


def test_rows_that_settings_were_chosen_on_are_not_trained_on():
    assert all(
        entry.settings["private_rows"] <= 45_000
        for entry in HIDDEN_STATE.entries(RunScale.CPU)
        if entry.data == "cifar10"
    )


def test_the_ablation_varies_gates_and_batches_at_an_equal_number_of_steps():
    trainings = [entry.settings["training"] for entry in HIDDEN_STATE.ablation(RunScale.CPU)]
    assert {training.gates for training in trainings} >= {32, 64, 128, 256}
    sizes = {round(60_000 / training.batches) for training in trainings if training.batches}
    assert sizes == {250, 1000, 4000, 12_000, 30_000}
    assert {training.steps for training in trainings} == {1200, 4000}


@pytest.mark.parametrize("scale", [RunScale.QUICK, RunScale.CPU])
def test_every_plan_of_the_ablation_can_be_carried_out(scale):
    for entry in HIDDEN_STATE.ablation(scale):
        plan = entry.settings["training"].plan(entry.settings["private_rows"], entry.epsilon, seed=0)
        assert plan.guarantee(delta=1e-5).epsilon <= entry.epsilon


@pytest.mark.skipif(not (root() / "mnist").is_dir(), reason="needs MNIST in the data folder")
@pytest.mark.parametrize("place", [2, 6, 8, 10])
def test_a_quick_entry_promises_at_most_its_epsilon_under_replace_one_and_less_under_zero_out(place):
    entry = HIDDEN_STATE.entries(RunScale.QUICK)[place]
    assert (entry.data, entry.epsilon) == (DATA[0], EPSILONS[0])
    found = entry.measure(0)
    assert 0.97 * entry.epsilon < found.more["epsilon_replace_one"] <= entry.epsilon
    assert found.more["epsilon_zero_out"] < 0.8 * entry.epsilon
    assert found.value > 40
