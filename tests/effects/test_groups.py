"""Accuracies by group, their intervals, and parity, compared with fairlearn and with random data."""

import numpy as np
import pytest
import torch

from sordino.effects.bootstrap import bootstrap, change_of, gap_of, mean_of
from sordino.effects.calibration import BINS, calibration_error
from sordino.effects.groups import Group, Grouping, accuracies, demographic_parity, equalized_odds, who_lost
from sordino.errors import DataError


@pytest.fixture
def census():
    """Two classes, three groups, and predictions that are right three times in four."""
    generator = np.random.default_rng(0)
    target, group = generator.integers(2, size=900), generator.integers(3, size=900)
    predicted = np.where(generator.random(900) < 0.6 + 0.1 * group, target, 1 - target)
    names = ("a", "b", "c")
    grouping = Grouping(
        "letter", tuple(Group("letter", name, np.flatnonzero(group == k)) for k, name in enumerate(names))
    )
    return target, predicted, np.array(names)[group], grouping


def test_accuracies_are_those_of_fairlearn(census):
    fairlearn = pytest.importorskip("fairlearn.metrics", reason="fairlearn is missing: pip install 'sordino[fairness]'")
    from sklearn.metrics import accuracy_score

    target, predicted, names, grouping = census
    frame = fairlearn.MetricFrame(metrics=accuracy_score, y_true=target, y_pred=predicted, sensitive_features=names)
    found = accuracies(grouping, (predicted == target).astype(float), seed=0)
    assert {each.name: each.accuracy.value for each in found} == pytest.approx(frame.by_group.to_dict())


def test_parity_and_odds_are_those_of_fairlearn(census):
    fairlearn = pytest.importorskip("fairlearn.metrics", reason="fairlearn is missing: pip install 'sordino[fairness]'")
    target, predicted, names, grouping = census
    parity = demographic_parity(grouping, target, predicted, "yes", seed=0)
    odds = equalized_odds(grouping, target, predicted, "yes", seed=0)
    theirs = {"sensitive_features": names}
    assert parity.gap.value == pytest.approx(fairlearn.demographic_parity_difference(target, predicted, **theirs))
    assert odds.gap.value == pytest.approx(fairlearn.equalized_odds_difference(target, predicted, **theirs))
    assert odds.gap.low < odds.gap.value < odds.gap.high


def test_odds_of_a_group_with_one_class_are_refused_by_its_name(census):
    target, predicted, _, grouping = census
    alone = Group("letter", "alone", np.flatnonzero(target == 1)[:40])
    with pytest.raises(DataError, match="rows of both classes in each group, and 'alone' has rows of one"):
        equalized_odds(Grouping("letter", (*grouping.groups, alone)), target, predicted, "yes", seed=0)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    generator = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        values = (generator.random(80) < 0.8).astype(float)
        found = bootstrap(lambda rows, values=values: values[rows].mean(), 80, seed=trial, draws=200)
        held += found.low <= 0.8 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_an_interval_of_rows_that_are_all_alike_has_a_width():
    assert mean_of(np.ones(20), seed=0).low < 0.9
    assert change_of(np.zeros(20), seed=0).low < -0.1 and change_of(np.zeros(20), seed=0).high > 0.1
    assert gap_of(np.ones(20), np.zeros(20), seed=0).low < 0.95


def test_rows_that_are_hard_for_both_do_not_widen_a_loss():
    """Paired rows: the reference is right where the model is, and on two more rows of a hundred."""
    right = np.repeat([0.0, 1.0], 50)
    reference = right.copy()
    reference[:2] = 1
    group = Grouping("class", (Group("class", "all", np.arange(100)),))
    (found,) = accuracies(group, right, reference, seed=0)
    assert found.lost.value == pytest.approx(0.02)
    assert found.lost.high - found.lost.low < (found.accuracy.high - found.accuracy.low) / 3


def test_a_sentence_names_no_group_of_few_rows():
    right = np.zeros(150)
    reference = np.concatenate([np.ones(10), np.tile([0.0, 1.0], 35), np.zeros(70)])
    rows = np.split(np.arange(150), [10, 80])
    groups = Grouping("kind", tuple(Group("kind", name, part) for name, part in zip("abc", rows, strict=True)))
    headline = who_lost(accuracies(groups, right, reference, seed=0), "a twin")
    assert headline.startswith("Compared with a twin, accuracy is 50.0 points lower for b (")
    assert " and 0.0 points lower for c (" in headline
    alone = Grouping("kind", groups.groups[:2])
    assert "Fewer than two groups have 30 public rows" in who_lost(
        accuracies(alone, right, reference, seed=0), "a twin"
    )


def test_a_sentence_says_when_a_difference_may_be_chance():
    right, reference = np.zeros(80), np.tile([0.0, 1.0], 40)
    groups = Grouping(
        "kind", tuple(Group("kind", name, part) for name, part in zip("ab", np.split(np.arange(80), 2), strict=True))
    )
    assert "may be due to chance" in who_lost(accuracies(groups, right, reference, seed=0), "a twin")


def test_the_calibration_error_of_honest_answers_is_small_and_of_sure_ones_large():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 3, generator=generator)
    honest = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
    found, sure = (calibration_error(scale * logits, honest, seed=0) for scale in (1, 20))
    assert found.error.value < 0.015
    assert all(each.error.low <= each.error.value <= each.error.high for each in (found, sure))
    assert sure.error.value > 0.15 and "overconfident" in sure.words
    assert sum(each.rows for each in found.bins) == 4000 and len(found.bins) <= BINS
