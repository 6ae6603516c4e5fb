"""Estimators of the convex ReLU network: accuracy, guarantees and errors."""

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

import sordino as so
from sordino.accounting import Unit
from sordino.convex import GatedReLU
from sordino.errors import BudgetError, UsageError
from sordino.sklearn import ConvexReLUClassifier, ConvexReLURegressor
from sordino.sklearn.convex_relu_training import ModelWithConstant

METHODS = ["noisy-cgd", "dp-sgd"]


def points(number=600, seed=0):
    X = np.random.default_rng(seed).uniform(-1, 1, (number, 2))
    return X, np.where(X[:, 0] + X[:, 1] > 0, "up", "down")


def valley(number=600):
    X = np.random.default_rng(0).uniform(-1, 1, (number, 2))
    return X, 20 + 60 * np.abs(X[:, 0])


def quick(**settings):
    return ConvexReLUClassifier(**{"gates": 8, "batch_size": 200, "epochs": 2, "random_state": 0, **settings})


def quick_regressor(**settings):
    return ConvexReLURegressor(
        **{"target_range": (0, 100), "batch_size": 200, "epochs": 2, "random_state": 0, **settings}
    )


def weights(estimator):
    return torch.cat([x.detach().flatten() for x in estimator.module_.parameters()])


@pytest.mark.parametrize("method", METHODS)
def test_classes_are_learnt_at_epsilon_one_for_no_more_than_that(method):
    X, y = points()
    classifier = ConvexReLUClassifier(method=method, random_state=0).fit(X, y)
    assert classifier.score(*points(seed=1)) > 0.9
    assert 0.99 < classifier.privacy_.epsilon <= 1.0


@pytest.mark.parametrize(("method", "view"), [("noisy-cgd", "final-model"), ("dp-sgd", "every-step")])
def test_the_method_decides_what_may_be_seen(method, view):
    privacy = quick(method=method).fit(*points()).privacy_
    assert privacy.view == view
    assert any("nobody sees more of the run" in each for each in privacy.assumptions) == (method == "noisy-cgd")


@pytest.mark.parametrize("method", METHODS)
def test_replacing_one_row_needs_more_noise_than_leaving_it_out(method):
    X, _ = points()
    no_labels = np.full(600, "sideways")  # outside the classes: the weights are noise, equal for equal seeds
    one, other = (
        quick(method=method, adjacency=each, classes=["up", "down"]).fit(X, no_labels)
        for each in ("zero-out", "replace-one")
    )
    assert (one.privacy_.adjacency, other.privacy_.adjacency) == ("zero-out", "replace-one")
    assert 1.6 < weights(other).norm() / weights(one).norm() < 2.1


def test_a_regressor_bends_where_a_line_could_not():
    X, y = valley()
    regressor = ConvexReLURegressor(target_range=(0, 100), epsilon=3.0, random_state=0).fit(X, y)
    assert regressor.score(X, y) > 0.5
    low, middle, high = regressor.predict([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    assert middle < 45 < min(low, high)


def test_targets_beyond_the_range_count_as_its_nearest_end():
    X, y = valley()
    y[:20], y[20:40] = 100, 0
    beyond = y.copy()
    beyond[:20], beyond[20:40] = 1e9, -1e9
    one, other = (quick_regressor().fit(X, each) for each in (y, beyond))
    assert torch.equal(weights(one), weights(other))


def test_predictions_stay_within_the_range_of_the_fit():
    X, y = valley()
    regressor = quick_regressor(clip=1e3).fit(X, y)  # with so much noise that outputs leave the range
    regressor.set_params(target_range=(7, 8))
    predicted = regressor.predict(X)
    assert predicted.min() == 0 and predicted.max() == 100


def test_the_range_of_a_target_has_to_be_said_and_to_be_one():
    with pytest.raises(TypeError, match="target_range"):
        ConvexReLURegressor()
    with pytest.raises(UsageError, match=r"target_range must be \(low, high\) with low < high, got tuple of length 2"):
        quick_regressor(target_range=(1, 0)).fit(*valley())
    with pytest.raises(UsageError, match=r"target_range must be \(low, high\), got None"):
        quick_regressor(target_range=None).fit(*valley())


def test_scores_of_two_classes_are_one_number_and_agree_with_predictions():
    X, y = points()
    classifier = quick().fit(X, y)
    scores = classifier.decision_function(X)
    assert scores.shape == (600,) and ((scores > 0) == (classifier.predict(X) == "up")).all()


def test_scores_of_more_classes_have_a_column_each_and_no_score_is_called_a_probability():
    X, y = points()
    classifier = quick(classes=["up", "down", "sideways"]).fit(X, y)
    scores = classifier.decision_function(X)
    assert scores.shape == (600, 3) and (classifier.classes_[scores.argmax(axis=1)] == classifier.predict(X)).all()
    assert not hasattr(classifier, "predict_proba")


@pytest.mark.parametrize("method", METHODS)
def test_a_row_with_a_label_outside_the_declared_classes_contributes_nothing(method):
    X, y = points()
    y[:50] = "sideways"
    elsewhere = X.copy()
    elsewhere[:50] = 7.0
    one, other = (quick(method=method, classes=["up", "down"]).fit(each, y) for each in (X, elsewhere))
    assert torch.equal(weights(one), weights(other))


def test_pictures_are_rows_too():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 600)
    pictures = rng.integers(0, 60, (600, 1, 6, 6)).astype(np.uint8)
    pictures[np.arange(600), 0, 3 * labels] += 120
    classifier = ConvexReLUClassifier(classes=[0, 1], random_state=0).fit(pictures, labels)
    assert classifier.score(pictures, labels) > 0.9 and classifier.n_features_in_ == 36
    with pytest.raises(ValueError, match="X has 25 features"):
        classifier.predict(pictures[:, :, :5, :5])


def test_features_with_a_constant_keep_the_public_bound_and_tell_lengths_apart():
    model = ModelWithConstant(GatedReLU(gates=4)).build(inputs=3, outputs=2)
    rows = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [1e20, 0.0, 0.0]])
    seen = []
    model[1].maps.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(rows)
    assert seen[0].norm(dim=1).max() <= 1 + 1e-6 and len(seen[0].unique(dim=0)) == 4


def test_users_are_protected_with_all_of_their_rows_where_every_step_is_counted():
    X, y = points()
    users = [f"user {row % 150}" for row in range(600)]
    classifier = quick(method="dp-sgd", batch_size=50, rows_per_user=3).fit(X, y, users=users)
    assert classifier.privacy_.unit is Unit.USER
    elsewhere = X.copy()
    elsewhere[450:] = 7.0  # the fourth row of each user
    other = quick(method="dp-sgd", batch_size=50, rows_per_user=3).fit(elsewhere, y, users=users)
    assert torch.equal(weights(classifier), weights(other))


def test_what_is_hidden_is_proved_for_one_row_of_a_user_only():
    X, y = points()
    with pytest.raises(UsageError, match=r"one row per user, got rows_per_user 3: .* use method='dp-sgd'"):
        quick(rows_per_user=3, batch_size=50).fit(X, y, users=np.arange(600) // 3)
    assert quick(rows_per_user=1, batch_size=50).fit(X, y, users=np.arange(600) // 3).privacy_.unit is Unit.USER


@pytest.mark.parametrize("method", METHODS)
def test_a_cross_validation_is_charged_to_its_budget(method):
    X, y = points()
    budget = so.Budget((X, (y == "up").astype(int)))
    cross_val_score(quick(method=method, budget=budget), X, y, cv=KFold(2), error_score="raise")
    assert budget.releases == ("training run", "training run")
    assert 1.0 < budget.guarantee(delta=1e-5).epsilon < 2.0
    assert clone(quick(budget=budget)).budget is budget


def test_a_spent_budget_refuses_before_anything_is_trained():
    X, y = points()
    refused = quick(budget=so.Budget((X, (y == "up").astype(int)), epsilon=0.5, delta=1e-5))
    with pytest.raises(BudgetError, match=r"does not fit into the budget: 0 of 0.5 are spent"):
        refused.fit(X, y)
    assert not hasattr(refused, "module_")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "sgd"}, "method must be 'noisy-cgd' or 'dp-sgd', got 'sgd'"),
        ({"batch_size": 601}, "batch_size must be a whole number from 1 to 600, got 601"),
        ({"epochs": 0}, "epochs must be a whole number from 1"),
        ({"epochs": 2.5}, "epochs must be a whole number from 1"),
        ({"gates": 0}, "gates must be a whole number from 1"),
        ({"clip": 0.0}, "clip must be a finite number above 0"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number above 0"),
        ({"strength": -0.1}, r"strength must be in \[0,"),
        ({"epsilon": 0.0}, "epsilon must be a finite number above 0"),
        ({"epsilon": 50.0}, "epsilon must be at most 20"),
        ({"delta": 0.01}, "delta must be below 1 / examples"),
        ({"adjacency": "add-or-remove"}, "adjacency must be 'zero-out' or 'replace-one', got 'add-or-remove'"),
        ({"budget": 1.0}, "budget must be a Budget, got float"),
        ({"classes": ["up"]}, "at least two classes"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(method, settings, message):
    with pytest.raises(UsageError, match=message) as refused:
        quick(**{"method": method, **settings}).fit(*points())
    assert "\n" not in str(refused.value)


def test_steps_that_do_not_contract_are_refused_where_the_proof_needs_it():
    X, y = points()
    with pytest.raises(UsageError, match=r"learning_rate must be below 2 / \(smoothness \+ strength\) = 8, got 8.1"):
        quick(learning_rate=8.1).fit(X, y)
    with pytest.raises(UsageError, match=r"= 2.66667, got 3"):
        quick(learning_rate=3.0, strength=0.5).fit(X, y)
    with pytest.raises(UsageError, match=r"= 2, got 2.1"):
        quick_regressor(learning_rate=2.1).fit(*valley())
    assert quick(learning_rate=8.1, method="dp-sgd").fit(X, y).privacy_.epsilon <= 1.0


def test_momentum_is_no_parameter():
    with pytest.raises(TypeError, match="momentum"):
        ConvexReLUClassifier(momentum=0.9)


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_a_row_with_a_hole_counts_as_absent(hole):
    X, y = points()
    holes, labels = X.copy(), y.copy()
    holes[17, 1], labels[17] = hole, "none of them"
    classes = np.unique(y)
    one, other = quick(classes=classes).fit(holes, y), quick(classes=classes).fit(X, labels)
    assert torch.equal(weights(one), weights(other))


def test_a_seed_repeats_the_fit_and_none_does_not():
    X, y = points()
    one, again, other = (quick(random_state=each).fit(X, y) for each in (3, 3, None))
    assert torch.equal(weights(one), weights(again)) and not torch.equal(weights(one), weights(other))
    assert any("seed stays secret" in each for each in one.privacy_.assumptions)
