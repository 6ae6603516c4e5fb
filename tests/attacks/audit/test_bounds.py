"""The lower bounds against published values, against null scores, and against mechanisms whose epsilon is known.

A bound with confidence 95 % may be too large in one run of twenty: in more than 43 of 600 with probability at most 1 %.
"""

import numpy as np
import pytest
from known_scores import shifted
from scipy.stats import binom

from sordino.accounting.curves import GaussianCurve
from sordino.attacks.audit.lower_bounds import CLOPPER_PEARSON, F_DP, GAUSSIAN, METHODS, ONE_RUN, clopper_pearson
from sordino.attacks.audit.one_run import CANDIDATES, FIXED, FDp, Guesses, OneRun, Shares, contradicts, p_value
from sordino.attacks.audit.scores import Scores, simulated_scores
from sordino.errors import UsageError

RUNS, MOST_ABOVE = 600, 43
DELTA = 1e-5
JUDGED = {"delta": DELTA, "confidence": 0.95}

GOLDEN = [
    ((1000, 100, 95), 1e-5, 0.95, 2.165176, 3.323300, 6.639145e-04),
    ((1000, 100, 100), 0.0, 0.95, 3.492965, None, 2.484379e-14),
    ((1000, 100, 100), 1e-5, 0.95, 3.465376, 5.549028, 5.633090e-04),
    ((1000, 1000, 700), 1e-5, 0.95, 0.731741, 1.371980, 0.9871627),
    ((5000, 500, 450), 1e-5, 0.95, 1.941420, 2.776066, 9.463031e-04),
    ((10000, 1000, 900), 1e-6, 0.99, 1.951540, 2.727260, 9.948650e-05),
]


def test_most_above_is_what_chance_allows():
    assert binom.sf(MOST_ABOVE, RUNS, 0.05) < 0.01 < binom.sf(MOST_ABOVE - 1, RUNS, 0.05)


@pytest.mark.parametrize(("counts", "delta", "confidence", "one_run", "f_dp", "p_at_one"), GOLDEN)
def test_bounds_are_the_published_ones(counts, delta, confidence, one_run, f_dp, p_at_one):
    guesses = Guesses(*counts)
    assert p_value(guesses, 1.0, delta) == pytest.approx(p_at_one, rel=1e-6)
    assert OneRun().epsilon(guesses, delta=delta, confidence=confidence) == pytest.approx(one_run, abs=1e-6)
    if f_dp is not None:
        assert FDp().epsilon(guesses, delta=delta, confidence=confidence) == pytest.approx(f_dp, abs=1e-6)


@pytest.mark.parametrize(("number", "most"), [(10, 1.05), (100, 3.49), (500, 5.11), (1000, 5.81), (10000, 8.11)])
def test_even_if_every_guess_is_right_so_much_is_shown_at_most(number, most):
    epsilon = OneRun().epsilon(Guesses(number, number, number), delta=0, confidence=0.95)
    assert epsilon == pytest.approx(most, abs=0.006)


def test_the_interval_is_that_of_clopper_and_pearson():
    low, high = clopper_pearson(8, 10, 0.95)
    assert binom.sf(7, 10, low) == pytest.approx(0.025) == binom.cdf(8, 10, high)
    assert clopper_pearson(0, 10, 0.9) == (0.0, pytest.approx(1 - 0.05**0.1))
    assert clopper_pearson(10, 10, 0.9) == (pytest.approx(0.05**0.1), 1.0)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_scores_that_mean_nothing_show_nothing_but_as_often_as_chance_allows(method):
    rng = np.random.default_rng(7)
    bounds = [method.bound(shifted(0.0, 400, seed), rng, **JUDGED) for seed in range(RUNS)]
    assert sum(bound > 0 for bound in bounds) <= MOST_ABOVE
    assert min(bounds) == 0


def test_without_a_split_null_scores_show_nothing_either():
    for method in (ONE_RUN, F_DP):
        bounds = [method.bound_without_split(shifted(0.0, 400, seed), **JUDGED) for seed in range(RUNS)]
        assert sum(bound > 0 for bound in bounds) <= MOST_ABOVE


@pytest.mark.parametrize("mu", [1.0, 2.0])
def test_the_gaussian_mechanism_is_not_shown_to_be_worse_than_it_is(mu):
    """The mechanism is exactly mu-GDP, where bounds that assume a Gaussian trade-off are tight."""
    truth, rng = GaussianCurve(mu).epsilon(DELTA), np.random.default_rng(3)
    for method in (GAUSSIAN, CLOPPER_PEARSON):
        bounds = [method.bound(shifted(mu, 400, seed), rng, **JUDGED) for seed in range(RUNS)]
        assert sum(bound > truth for bound in bounds) <= MOST_ABOVE
        assert np.mean(bounds) > 0.1 * truth


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_f_dp_does_not_contradict_the_true_curve(mu):
    """A bound is above the truth if and only if the true mu is contradicted, whatever shares were chosen."""
    for shares in (FIXED, Shares(0.2, 0.2), Shares(0.5, 0.5)):
        wrong = sum(contradicts(shares.of(shifted(mu, 400, seed)), mu, 0.05) for seed in range(RUNS))
        assert wrong <= MOST_ABOVE


def test_one_run_does_not_exceed_randomised_response():
    """Each score is the canary's coin, reported right with probability e^eps / (1 + e^eps): the bound is tight."""
    epsilon, above = 1.5, 0
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        included = rng.random(400) < 0.5
        reported = included ^ (rng.random(400) > 1 / (1 + np.exp(-epsilon)))
        scores = Scores(2.0 * reported + rng.random(400), included)
        above += p_value(FIXED.of(scores), epsilon, 0.0) < 0.05
    assert 0 < above <= MOST_ABOVE


@pytest.mark.slow
@pytest.mark.parametrize("method", [ONE_RUN, F_DP], ids=["one-run", "f-dp"])
def test_guesses_with_chosen_shares_do_not_exceed_the_truth(method):
    truth, rng = GaussianCurve(1.0).epsilon(DELTA), np.random.default_rng(3)
    bounds = [method.bound(shifted(1.0, 400, seed), rng, **JUDGED) for seed in range(RUNS)]
    assert sum(bound > truth for bound in bounds) <= MOST_ABOVE


def test_more_right_guesses_show_more():
    for statistic in (OneRun(), FDp()):
        shown = [statistic.epsilon(Guesses(500, 60, right), **JUDGED) for right in range(30, 61, 5)]
        assert shown == sorted(shown) and shown[-1] > shown[0] == 0


def test_sampled_steps_are_found_out_as_far_as_was_measured_elsewhere():
    """Epsilon 8 at rate 0.1 over 100 steps, 1000 canaries: means of 40 runs."""
    found = {"one-run": [], "f-dp": [], "one-run without split": [], "f-dp without split": []}
    for seed in range(6000, 6040):  # not the seeds on which the candidate fractions were chosen
        rng = np.random.default_rng(seed)
        scores = simulated_scores(1000, rng, noise_multiplier=0.93596, rate=0.1, steps=100)
        for method in (ONE_RUN, F_DP):
            found[method.name].append(method.bound(scores, rng, **JUDGED))
            found[f"{method.name} without split"].append(method.bound_without_split(scores, **JUDGED))
    means = {name: np.mean(bounds) for name, bounds in found.items()}
    assert means["one-run"] >= 1.7 and means["f-dp"] >= 2.8
    assert means["one-run without split"] >= 2.1 and means["f-dp without split"] >= 3.2
    assert max(max(bounds) for bounds in found.values()) < 8


def test_worse_than_guessing_shows_nothing():
    """Scores with the wrong sign show nothing, however confident they are."""
    rng = np.random.default_rng(0)
    backwards = shifted(-8.0, 400, 0)
    assert all(method.bound(backwards, rng, **JUDGED) == 0 for method in METHODS.values())


def test_ties_are_no_knowledge():
    included = shifted(0.0, 400, 1).included
    for scores in (Scores(np.zeros(400), included), Scores(np.sort(np.arange(400) % 2.0), np.sort(included))):
        tied = Scores(np.zeros(400), scores.included)
        assert all(shares.of(tied).correct == 0 for shares in CANDIDATES if shares.inside + shares.outside < 1)
        for method in METHODS.values():
            assert method.bound(tied, np.random.default_rng(0), **JUDGED) == 0


def test_a_tie_at_the_line_is_a_guess_and_wrong():
    scores = Scores(np.array([3.0, 2.0, 2.0, 2.0, 1.0]), np.array([True, True, True, False, False]))
    assert Shares(0.4, 0.0).of(scores) == Guesses(5, 2, 1)
    assert Shares(0.4, 0.2).of(scores) == Guesses(5, 3, 2)
    assert Shares(0.8, 0.2).of(scores) == Guesses(5, 5, 4)


def test_infinite_scores_have_a_place():
    scores = Scores(np.array([np.inf, 1.0, 0.0, -np.inf]), np.array([True, True, False, False]))
    assert Shares(0.25, 0.25).of(scores).correct == 2


@pytest.mark.parametrize(
    ("values", "included", "message"),
    [
        ([], [], "at least one canary, got none"),
        ([1.0, 2.0], [True, True], "got all 2 canaries included"),
        ([1.0, 2.0], [False, False], "got all 2 canaries left out"),
        ([1.0, np.nan], [True, False], "got 1 that are NaN"),
        ([1.0, 2.0], [True], "one number and one bool per canary"),
    ],
)
def test_scores_that_cannot_be_judged_are_refused_in_one_line(values, included, message):
    with pytest.raises(UsageError, match=message) as refused:
        Scores(np.array(values), np.array(included, dtype=bool))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("confidence", [0.0, 0.5, 1.0, 95, -1, float("nan")])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_confidence_that_means_nothing_is_refused(method, confidence):
    with pytest.raises(UsageError, match="confidence must be in"):
        method.bound(shifted(1.0, 100, 0), np.random.default_rng(0), delta=DELTA, confidence=confidence)


def test_a_few_canaries_cannot_be_split():
    with pytest.raises(UsageError, match="canaries_to_split must be a whole number from 4"):
        ONE_RUN.bound(Scores(np.array([1.0, 0.0]), np.array([True, False])), np.random.default_rng(0), **JUDGED)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_nothing_is_shown_beyond_the_ceiling(method):
    ceiling = method.ceiling(200, **JUDGED)
    best = max(method.bound(shifted(50.0, 200, seed), np.random.default_rng(seed), **JUDGED) for seed in range(20))
    assert 0.7 * ceiling < best <= ceiling * (1 + 1e-9)
