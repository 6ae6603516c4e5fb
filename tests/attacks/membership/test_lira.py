"""LiRA's likelihood ratio on logits with known distributions."""

import numpy as np
import pytest
from scipy import stats

from sordino.attacks.membership import lira
from sordino.attacks.membership.references import halves
from sordino.attacks.membership.roc import Roc
from sordino.errors import UsageError

SHIFT, SPREAD = 1.5, 2.0


def logits_of_references(rows, references, generator):
    included = (np.arange(references) % 2 == 0)[:, None] ^ (generator.random(rows) < 0.5)
    difficulty = generator.normal(0, 5, rows)  # of each row, which an attack has to subtract
    return difficulty, difficulty + SHIFT * included + SPREAD * generator.normal(size=included.shape), included


def test_the_ratio_is_that_of_two_normal_laws():
    generator = np.random.default_rng(0)
    difficulty, references, included = logits_of_references(50, 4000, generator)
    target = difficulty + generator.normal(0, 4, 50)
    exact = stats.norm.logpdf(target, difficulty + SHIFT, SPREAD) - stats.norm.logpdf(target, difficulty, SPREAD)
    assert lira.online(target, references, included) == pytest.approx(exact, abs=0.15)  # means are off by 0.045


def test_many_references_reach_the_best_area_and_four_come_near():
    generator = np.random.default_rng(1)
    best = stats.norm.cdf(SHIFT / SPREAD / np.sqrt(2))
    is_member = np.arange(3000) < 1500
    areas = []
    for references in (200, 4):
        difficulty, logits, included = logits_of_references(3000, references, generator)
        target = difficulty + SHIFT * is_member + SPREAD * generator.normal(size=3000)
        areas.append(Roc.of(lira.online(target, logits, included), is_member).auc().value)
    assert areas[0] == pytest.approx(best, abs=0.03)  # three standard errors
    assert 0.6 < areas[1] < areas[0]


def test_a_pooled_variance_is_that_within_rows():
    generator = np.random.default_rng(2)
    difficulty, references, included = logits_of_references(2000, 4, generator)
    scores = lira.offline(difficulty + 10 * SPREAD, references, included)
    assert scores.mean() == pytest.approx(10, rel=0.05)  # the spread of difficulties, 5, is not in it


def test_the_offline_score_ranks_as_the_published_one():
    generator = np.random.default_rng(3)
    difficulty, references, included = logits_of_references(100, 16, generator)
    target = difficulty + generator.normal(size=100)
    scores = lira.offline(target, references, included)
    mean = np.array([column[~chosen].mean() for column, chosen in zip(references.T, included.T, strict=True)])
    squares = sum(
        ((column[~chosen] - column[~chosen].mean()) ** 2).sum()
        for column, chosen in zip(references.T, included.T, strict=True)
    )
    spread = np.sqrt(squares / (100 * 7))
    published = 1 - stats.norm.sf(target, mean, spread)
    assert np.array_equal(np.argsort(scores), np.argsort(published))


@pytest.mark.parametrize("attack", [lira.online, lira.offline])
def test_scores_that_are_not_numbers_are_refused(attack):
    included = halves(3, 4, seed=0)
    with pytest.raises(UsageError, match="finite numbers"):
        attack(np.array([1.0, np.nan, 0.0]), np.zeros((4, 3)), included)
    with pytest.raises(UsageError, match=r"\(references, rows\)"):
        attack(np.zeros(2), np.zeros((4, 3)), included)


def test_references_of_one_kind_only_are_refused():
    with pytest.raises(UsageError, match="at least two references trained on it"):
        lira.online(np.zeros(3), np.zeros((4, 3)), np.zeros((4, 3), bool))
    with pytest.raises(UsageError, match="one reference that was not trained on it"):
        lira.offline(np.zeros(3), np.zeros((4, 3)), np.ones((4, 3), bool))
