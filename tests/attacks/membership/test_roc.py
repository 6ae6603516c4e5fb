"""Detection rates, areas and their intervals, on a few scores."""

import numpy as np
import pytest
from scipy import stats

from sordino.attacks.membership.roc import Roc
from sordino.errors import UsageError


def scores_of(members, others):
    scores = np.concatenate([members, others])
    return Roc.of(scores, np.arange(len(scores)) < len(members))


def test_no_more_than_the_allowed_share_is_accused():
    generator = np.random.default_rng(0)
    roc = scores_of(generator.normal(1, 1, 500), generator.normal(0, 1, 1000))
    for allowed in (0.001, 0.01, 0.0999, 0.5):
        found = roc.at(allowed)
        assert found.accused <= allowed < found.accused + 0.0011  # and one more would be too many
        assert found.low < found.found < found.high
        assert found.accused_at_most > found.accused


def test_whoever_ties_with_an_absent_row_is_not_found():
    roc = scores_of(np.array([2.0, 2.0, 3.0, 1.0]), np.array([2.0, 2.0, 0.0, 0.0]))
    assert roc.at(0.25).found == 0.25 and roc.at(0.25).accused == 0.0
    assert roc.at(0.5).found == 1.0 and roc.at(0.5).accused == 0.5


def test_too_few_absent_rows_for_a_rate_means_that_none_may_be_accused():
    found = scores_of(np.array([1.0, 3.0]), np.array([2.0, 0.0])).at(0.001)
    assert (found.found, found.accused) == (0.5, 0.0)
    assert found.accused_at_most > 0.5  # two rows cannot show a rate of one in a thousand


def test_the_area_is_the_share_of_pairs_in_the_right_order():
    generator = np.random.default_rng(1)
    members, others = generator.integers(0, 9, 40).astype(float), generator.integers(0, 7, 30).astype(float)
    pairs = [(m > o) + (m == o) / 2 for m in members for o in others]
    assert scores_of(members, others).auc().value == pytest.approx(np.mean(pairs))


def test_the_interval_of_the_area_holds_about_as_often_as_it_says():
    generator, truth, missed = np.random.default_rng(2), stats.norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(300):
        area = scores_of(generator.normal(1, 1, 80), generator.normal(0, 1, 120)).auc()
        missed += not area.low <= truth <= area.high
    assert missed <= 30  # 15 are expected; more than 30 of 300 at 5 % have probability 1e-4


def test_the_curve_passes_through_the_detections():
    generator = np.random.default_rng(3)
    roc = scores_of(generator.normal(1, 1, 300), generator.normal(0, 1, 1000))
    curve = roc.curve(points=4)  # at one in a thousand, in a hundred, in ten, and all
    assert curve.accused == pytest.approx((0.001, 0.01, 0.1, 1.0))
    assert curve.found[:2] == pytest.approx([roc.at(0.001).found, roc.at(0.01).found])
    assert list(curve.found) == sorted(curve.found)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, float("nan"), 2.0])
def test_bad_rates_are_refused(rate):
    with pytest.raises(UsageError, match="allowed must be in"):
        scores_of(np.ones(3), np.zeros(3)).at(rate)


@pytest.mark.parametrize("is_member", [np.ones(3, bool), np.zeros(3, bool)])
def test_rows_of_one_kind_only_are_refused(is_member):
    with pytest.raises(UsageError, match="both kinds"):
        Roc.of(np.zeros(3), is_member)


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(UsageError, match="got 2 that are NaN"):
        Roc.of(np.array([np.nan, 1.0, np.nan]), np.array([True, False, True]))
    with pytest.raises(UsageError, match="one value for each row"):
        Roc.of(np.zeros(3), np.zeros(2, bool))
