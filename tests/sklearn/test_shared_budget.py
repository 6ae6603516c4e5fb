"""Several fits on the same people share a budget, which accounts for all of them together."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dp_accounting.dp_event import ComposedDpEvent
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline

import sordino as so
from sordino.accounting import Unit, privacy_of
from sordino.errors import BudgetError, UsageError
from sordino.sklearn import NoisyAccuracy, PrivateClassifier, PublicScaler

X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
Y = (X[:, 0] > 0).astype(int)


def private(budget, **settings):
    return PrivateClassifier(**{"epochs": 3, "random_state": 0, "budget": budget, **settings})


def epsilon_of(events):
    return privacy_of(ComposedDpEvent(events), so.Adjacency.ZERO_OUT).epsilon(1e-5)


def test_the_total_of_a_cross_validation_is_the_composition_of_its_fits():
    budget, fitted = so.Budget((X, Y)), []

    def noted(estimator, *rows):
        fitted.append(estimator)
        return estimator.score(*rows)

    scores = cross_val_score(private(budget), X, Y, cv=KFold(3), scoring=noted)
    events = [each.privacy_.event for each in fitted]
    total = budget.guarantee(delta=1e-5).epsilon
    assert scores.min() > 0.8 and len(events) == len(budget.releases) == 3
    assert total == pytest.approx(epsilon_of(events), rel=1e-9)
    assert max(each.privacy_.epsilon for each in fitted) < total < sum(each.privacy_.epsilon for each in fitted)


def test_each_fit_says_that_it_is_counted_alone():
    budget = so.Budget((X, Y))
    first, second = private(budget).fit(X[:200], Y[:200]), private(budget).fit(X[100:], Y[100:])
    assert not any("counted alone" in each for each in first.privacy_.assumptions)
    assert any("counted alone: its budget holds 2 releases" in each for each in second.privacy_.assumptions)
    assert second.privacy_.epsilon <= 1.0 < budget.guarantee(delta=1e-5).epsilon


def test_a_search_pays_for_each_candidate_each_fold_and_the_last_fit():
    budget = so.Budget((X, Y))
    pipeline = make_pipeline(PublicScaler(low=-1, high=1), private(budget))
    grid = {"privateclassifier__learning_rate": [0.1, 0.5]}
    search = GridSearchCV(pipeline, grid, cv=KFold(2), scoring=NoisyAccuracy(budget, noise_multiplier=5.0))
    search.fit(X, Y)
    assert sorted(budget.releases) == ["score"] * 4 + ["training run"] * 5
    assert search.best_estimator_[-1].budget is budget


def test_a_spent_budget_refuses_the_next_fold_before_it_trains():
    budget = so.Budget((X, Y), epsilon=1.5, delta=1e-5)
    with pytest.raises(BudgetError, match=r"epsilon 1 .* does not fit into the budget: [\d.]+ of 1.5 are spent"):
        cross_val_score(private(budget), X, Y, cv=KFold(5), error_score="raise")
    assert len(budget.releases) == 2 and budget.guarantee(delta=1e-5).epsilon <= 1.5


def test_a_refused_fit_is_not_a_fitted_one():
    budget = so.Budget((X, Y), epsilon=0.5, delta=1e-5)
    refused = private(budget)
    with pytest.raises(BudgetError):
        refused.fit(X, Y)
    assert not hasattr(refused, "module_") and budget.releases == ()


def test_clones_and_deep_copies_spend_from_the_same_budget():
    budget = so.Budget((X, Y))
    assert clone(private(budget)).budget is budget
    assert copy.deepcopy({"held": [budget]})["held"][0] is budget


@pytest.mark.parametrize("leave", [copy.copy, pickle.dumps, lambda budget: pickle.dumps(private(budget))])
def test_a_budget_does_not_leave_its_process(leave):
    with pytest.raises(UsageError, match="another process, because what is spent there"):
        leave(so.Budget((X, Y)))


def test_a_budget_of_examples_does_not_pay_for_users():
    users = np.arange(300) // 3
    with pytest.raises(UsageError, match="must have its privacy unit example, got user"):
        private(so.Budget((X, Y)), rows_per_user=3).fit(X, Y, users=users)
    budget = so.Budget(so.by_user((X, Y), users, rows_per_user=3))
    assert private(budget, rows_per_user=3).fit(X, Y, users=users).privacy_.unit is Unit.USER
    assert budget.guarantee(delta=1e-5).unit is Unit.USER


def test_what_is_no_budget_is_refused():
    with pytest.raises(UsageError, match="budget must be a Budget, got float"):
        private(1.0).fit(X, Y)


def test_a_cross_validation_hands_each_fold_its_users():
    users = np.arange(300) // 3
    budget = so.Budget(so.by_user((X, Y), users, rows_per_user=3))
    cross_val_score(private(budget, rows_per_user=3), X, Y, cv=KFold(3), params={"users": users}, error_score="raise")
    assert len(budget.releases) == 3


def test_two_threads_do_not_both_take_what_is_left_for_one(monkeypatch):
    def slow(*arguments):
        time.sleep(0.05)
        return privacy_of(*arguments)

    monkeypatch.setattr("sordino.kernel.budget.privacy_of", slow)
    budget = so.Budget((X, Y), epsilon=1.0, delta=1e-5)  # enough for one of these, and not for two
    with ThreadPoolExecutor(2) as threads:
        event = so.Gaussian(5.0).event
        charges = [threads.submit(budget.charge, event, so.Adjacency.ZERO_OUT, what="release") for _ in range(2)]
    assert sum(isinstance(each.exception(), BudgetError) for each in charges) == 1
    assert budget.releases == ("release",)


class Knowing:
    """Predicts the labels of the first rows correctly and those of other rows incorrectly."""

    def __init__(self, right):
        self.right = right

    def predict(self, rows):
        return np.where(np.arange(len(rows)) < self.right, Y[: len(rows)], 7)


def test_a_noisy_score_is_the_share_that_is_right_with_the_noise_that_is_charged():
    budget = so.Budget((X, Y))
    score = NoisyAccuracy(budget, noise_multiplier=10.0)
    scores = np.array([score(Knowing(right=240), X, Y) for _ in range(200)])
    assert abs(scores.mean() - 0.8) < 6 * 10 / 300 / np.sqrt(200)
    assert 0.7 < scores.std() / (10 / 300) < 1.3
    assert budget.releases == ("score",) * 200


@pytest.mark.parametrize("as_rows", [np.asarray, lambda rows: pytest.importorskip("pandas").DataFrame(rows)])
def test_a_row_with_a_hole_is_not_right_and_no_error(as_rows):
    holes = X.copy()
    holes[:60, 0] = np.nan

    class Strict(Knowing):
        def predict(self, rows):
            assert np.isfinite(np.asarray(rows)).all()
            return super().predict(rows)

    score = NoisyAccuracy(so.Budget((X, Y)), noise_multiplier=1.0)
    assert abs(score(Strict(right=300), as_rows(holes), Y) - 0.8) < 10 / 300
    assert np.isnan(holes[:60, 0]).all()


def test_a_score_that_cannot_be_paid_for_is_not_computed():
    class Untouchable:
        def predict(self, rows):
            raise AssertionError("the rows were looked at")

    budget = so.Budget((X, Y), epsilon=0.1, delta=1e-5)
    with pytest.raises(BudgetError, match="the score would bring epsilon to"):
        NoisyAccuracy(budget, noise_multiplier=1.0)(Untouchable(), X, Y)


def test_a_noisy_score_counts_rows_not_users():
    budget = so.Budget(so.by_user((X, Y), np.arange(300) // 3, rows_per_user=3))
    with pytest.raises(UsageError, match=r"privacy unit must be an example, .* got user"):
        NoisyAccuracy(budget, noise_multiplier=5.0)
