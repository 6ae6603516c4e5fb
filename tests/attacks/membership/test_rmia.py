"""RMIA against a loop over pairs of rows."""

import numpy as np
import pytest

from sordino.attacks.membership.references import halves
from sordino.attacks.membership.rmia import Rmia
from sordino.errors import UsageError


def test_scores_are_those_of_a_loop_over_pairs():
    generator = np.random.default_rng(0)
    target, marginal = generator.random(30), generator.random(30)
    population, of_population = generator.random(40), generator.random(40)
    for gamma in (1.0, 2.0, 4.0):
        expected = [
            np.mean([(x / px) / (z / pz) >= gamma for z, pz in zip(population, of_population, strict=True)])
            for x, px in zip(target, marginal, strict=True)
        ]
        found = Rmia(gamma).scores(target, marginal, population, of_population)
        assert found == pytest.approx(expected, abs=1e-12)


def test_the_online_marginal_gives_both_kinds_the_same_weight():
    references = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.6]])
    included = np.array([[True, True], [True, False], [False, False]])
    assert Rmia().online(references, included) == pytest.approx([(0.85 + 0.1) / 2, (0.1 + 0.4) / 2])


def test_the_offline_correction_ends_at_no_correction_and_at_certainty():
    references = np.array([[0.2], [0.4]])
    assert Rmia(a=1.0).offline(references) == pytest.approx([0.3])
    assert Rmia(a=0.0).offline(references) == pytest.approx([0.65])


def test_likelihoods_of_zero_do_not_break_it():
    scores = Rmia().scores(np.array([0.0, 1.0]), np.array([0.0, 0.5]), np.array([0.0, 0.5]), np.array([0.5, 0.5]))
    assert np.isfinite(scores).all() and scores[1] >= scores[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"gamma": 0.5}, "gamma"), ({"gamma": float("nan")}, "gamma"), ({"a": 1.5}, "a must"), ({"a": -0.1}, "a must")],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Rmia(**settings)


def test_nobody_to_compare_with_and_what_is_not_a_number_are_refused():
    one = np.array([0.5])
    with pytest.raises(UsageError, match="got none"):
        Rmia().scores(one, one, np.zeros(0), np.zeros(0))
    with pytest.raises(UsageError, match="NaN"):
        Rmia().scores(np.array([np.nan]), one, one, one)
    with pytest.raises(UsageError, match="references trained on it"):
        Rmia().online(np.zeros((2, 2)), np.zeros((2, 2), bool))


def test_every_row_is_learnt_from_by_half_of_the_references():
    chosen = halves(101, 6, seed=3)
    assert (chosen.sum(axis=0) == 3).all()
    assert not np.array_equal(chosen[0], chosen[2])
    for wrong in (1, 3, 0, 258):
        with pytest.raises(UsageError, match="references must"):
            halves(10, wrong, seed=0)
