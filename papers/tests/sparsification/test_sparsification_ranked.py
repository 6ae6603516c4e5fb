"""The experiment on ranks: three trainings that differ in their masks only, and a count of masks beside them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sordino.encodings import RandomSparsify, RankedSparsify
from sordino.kernel.encoding import Unchanged
from sordino.training.not_private import NOT_PRIVATE
from sordino_papers.harness.entry import RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.sparsification import ranked
from sordino_papers.sparsification.ranked import COMPARED, NONE, RANDOM, RANKED, RANKED_TABLE


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """The quick table with two epochs of each training, and four of the masks."""
    compared = COMPARED[RunScale.QUICK]
    counted = replace(compared.counted, trial=replace(compared.counted.trial, epochs=4))
    short = replace(compared, trial=replace(compared.trial, epochs=2), counted=counted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ranked.COMPARED, RunScale.QUICK, short)
        return reproduce(RANKED_TABLE, tmp_path_factory.mktemp("ranked"), scale=RunScale.QUICK, seeds=1, progress=False)


@pytest.mark.parametrize("scale", list(RunScale))
def test_the_three_differ_in_their_masks_only(scale) -> None:
    trials = COMPARED[scale].trials()
    encodings = {method: trial.encoding(60_000) for method, trial in trials.items()}
    assert {method: type(encoding) for method, encoding in encodings.items()} == {
        NONE: Unchanged,
        RANDOM: RandomSparsify,
        RANKED: RankedSparsify,
    }
    assert vars(encodings[RANDOM]) == vars(encodings[RANKED])
    events = {str(trial.plan(trial.poisson(60_000), 1.0, 60_000).event) for trial in trials.values()}
    assert len(events) == 1


def test_accuracies_have_the_epsilon_that_was_asked_for_and_counts_have_none(table) -> None:
    *accuracies, counts = table.rows
    assert [row.method for row in accuracies] == [NONE, RANDOM, RANKED]
    assert all(2.9 < row.more["epsilon"] <= row.epsilon == 3.0 for row in accuracies)
    assert counts.epsilon is None and "epsilon" not in counts.more and counts.more["warning"] == NOT_PRIVATE


def test_noisy_ranks_are_nearly_random_and_ranks_without_noise_are_not(table) -> None:
    distance = table.rows[-1].more["distance"]
    assert distance["random"] < 0.02 and distance["expected"] == 0.0
    assert distance["ranked"] < distance["noise_free"] / 4


def test_the_picture_labels_the_curve_that_is_not_private(table) -> None:
    picture, numbers = table.sides[0].files
    assert ">ranked without noise, not private</text>" in picture.read_text() and NOT_PRIVATE in picture.read_text()
    assert {"command", "commit", "machine", "seeds"} <= json.loads(numbers.read_text()).keys()
