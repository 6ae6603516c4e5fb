"""`PrivateClassifier`: accuracy, guarantee, and error messages without private values."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from torch import nn

from sordino.accounting import Unit, pld
from sordino.errors import UsageError
from sordino.sklearn import PrivateClassifier, PublicScaler
from sordino.sklearn.estimator import linear

SECRET = "a-diagnosis-nobody-may-read"


def points(number=300, seed=0):
    X = np.random.default_rng(seed).uniform(-1, 1, (number, 2))
    return X, np.where(X[:, 0] + X[:, 1] > 0, "up", "down")


def quick(**settings):
    """A classifier with few steps on all rows."""
    return PrivateClassifier(**{"epochs": 3, "random_state": 0, **settings})


def weights(estimator):
    return torch.cat([x.detach().flatten() for x in estimator.module_.parameters()])


def test_it_learns_at_epsilon_one_and_promises_no_more_than_that():
    X, y = points()
    classifier = PrivateClassifier(epsilon=1.0, random_state=0).fit(X, y)
    assert classifier.score(*points(seed=1)) > 0.9
    assert 0.99 < classifier.privacy_.epsilon <= 1.0
    assert (classifier.privacy_.delta, classifier.privacy_.unit) == (1e-5, Unit.EXAMPLE)


def test_probabilities_sum_to_one_and_agree_with_predictions():
    X, y = points()
    classifier = quick().fit(X, y)
    probabilities = classifier.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (classifier.classes_[probabilities.argmax(axis=1)] == classifier.predict(X)).all()


def test_labels_that_were_not_declared_are_an_assumption():
    X, y = points()
    assert any("set of labels" in each for each in quick().fit(X, y).privacy_.assumptions)
    assert not any("set of labels" in each for each in quick(classes=["up", "down"]).fit(X, y).privacy_.assumptions)


def test_a_row_with_a_label_outside_the_declared_classes_contributes_nothing():
    X, y = points()
    y[:50] = "sideways"
    elsewhere = X.copy()
    elsewhere[:50] = 7.0
    one, other = (quick(classes=["up", "down"]).fit(each, y) for each in (X, elsewhere))
    assert torch.equal(weights(one), weights(other))
    assert one.classes_.tolist() == ["down", "up"]


def test_a_declared_class_that_nobody_has_can_be_predicted_all_the_same():
    X, y = points()
    assert quick(classes=["up", "down", "sideways"]).fit(X, y).predict_proba(X).shape == (300, 3)


def test_whether_a_declared_label_is_missing_raises_no_error():
    X, _ = points()
    assert quick(classes=[0, 1]).fit(X, np.full(300, 0.5)).classes_.tolist() == [0, 1]


@pytest.mark.parametrize("classes", [[0, 1], ["up"], []])
def test_classes_that_cannot_be_meant_are_refused(classes):
    with pytest.raises(UsageError, match=r"class"):
        quick(classes=classes).fit(*points())


def test_a_seed_repeats_the_fit_and_is_an_assumption():
    X, y = points()
    one, again = quick(random_state=3).fit(X, y), quick(random_state=3).fit(X, y)
    assert torch.equal(weights(one), weights(again))
    assert any("seed stays secret" in each for each in one.privacy_.assumptions)


def test_without_a_seed_no_two_fits_are_alike():
    X, y = points()
    one, other = quick(random_state=None).fit(X, y), quick(random_state=None).fit(X, y)
    assert not torch.equal(weights(one), weights(other))
    assert not any("seed" in each for each in one.privacy_.assumptions)


def test_a_random_state_gives_another_seed_at_each_fit():
    X, y = points()
    shared = np.random.RandomState(0)
    one, other = quick(random_state=shared).fit(X, y), quick(random_state=shared).fit(X, y)
    assert not torch.equal(weights(one), weights(other))
    with pytest.raises(UsageError, match=r"random_state must be None, an integer .* got str of length 6"):
        quick(random_state="chance").fit(X, y)


def test_the_network_is_what_the_factory_makes_and_torchs_generator_is_left_alone():
    def two_layers(n_features, n_outputs):
        return nn.Sequential(nn.Linear(n_features, 8), nn.Tanh(), nn.Linear(8, n_outputs))

    X, y = points()
    before = torch.get_rng_state()
    one, again = quick(module=two_layers).fit(X, y), quick(module=two_layers).fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights(one), weights(again)) and len(weights(one)) == 2 * 8 + 8 + 8 * 2 + 2


def test_users_are_protected_with_all_of_their_rows():
    X, y = points()
    users = [f"user {row % 60}" for row in range(300)]
    classifier = quick(rows_per_user=4).fit(X, y, users=users)
    assert classifier.privacy_.unit is Unit.USER
    elsewhere = X.copy()
    elsewhere[240:] = 7.0  # the fifth row of each user
    assert torch.equal(weights(classifier), weights(quick(rows_per_user=4).fit(elsewhere, y, users=users)))


def test_users_need_a_bound_and_a_name_for_each_row():
    X, y = points()
    with pytest.raises(UsageError, match=r"rows_per_user, .* must be given with users"):
        quick().fit(X, y, users=np.arange(300))
    with pytest.raises(UsageError, match=r"one entry per row \(300\), got shape \(299,\)"):
        quick(rows_per_user=2).fit(X, y, users=np.arange(299))


def test_errors_quote_no_cell():
    X, y = points()
    cells = X.astype(object)
    cells[17, 1] = SECRET
    with pytest.raises(ValueError, match="must be numeric, got strings") as refused:
        quick().fit(cells, y)
    assert SECRET not in str(refused.value) and refused.value.__suppress_context__


@pytest.mark.parametrize("hole", [np.nan, np.inf, -np.inf])
def test_a_row_with_a_hole_counts_as_absent(hole):
    """Such a row has the effect of a row with an undeclared label, to the last bit."""
    X, y = points()
    holes, labels = X.copy(), y.copy()
    holes[17, 1], labels[17] = hole, "none of them"
    with_a_hole, without = quick(classes=["down", "up"]).fit(holes, y), quick(classes=["down", "up"]).fit(X, labels)
    assert torch.equal(weights(with_a_hole), weights(without))


@pytest.mark.parametrize("hole", [None, np.nan])
def test_a_label_that_is_missing_is_no_class(hole):
    X, y = points()
    labels = y.astype(object)
    labels[17] = hole
    assert quick().fit(X, labels).classes_.tolist() == ["down", "up"]
    numbers = np.where(y == "up", 1.0, 0.0)
    numbers[17] = np.nan
    assert quick().fit(X, numbers).classes_.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("rows", [np.full(8, 0.123456), np.full((8, 2), 0.123456j)])
def test_rows_that_are_none_are_not_printed(rows):
    for act in (lambda: quick().fit(rows, np.arange(8) % 2), lambda: quick().fit(*points()).predict(rows)):
        with pytest.raises(ValueError) as refused:
            act()
        assert "0.12" not in str(refused.value) and refused.value.__suppress_context__


def test_a_hole_is_taken_for_zero_where_it_is_predicted_for():
    classifier = quick().fit(*points())
    rows, filled = [[0.3, np.nan], [np.inf, -0.9]], [[0.3, 0.0], [0.0, -0.9]]
    assert (classifier.predict_proba(rows) == classifier.predict_proba(filled)).all()


def test_a_large_data_set_needs_a_smaller_delta():
    X, y = np.zeros((1000, 1)), np.arange(1000) % 2
    with pytest.raises(UsageError, match="delta must be below 1 / examples"):
        quick(delta=1e-3).fit(X, y)


def test_a_refused_fit_leaves_the_last_one_as_it_was():
    X, y = points()
    classifier = quick().fit(X, y)
    before = classifier.predict(X)
    with pytest.raises(UsageError, match="epsilon"):
        classifier.set_params(epsilon=-1.0).fit(X, np.where(y == "up", "left", "right"))
    assert (classifier.predict(X) == before).all() and classifier.privacy_.epsilon > 0


def test_nothing_is_predicted_before_a_fit():
    with pytest.raises(NotFittedError):
        quick().predict([[0.0, 0.0]])


def test_it_works_in_a_pipeline_behind_public_scaling():
    X, y = points()
    pipeline = make_pipeline(PublicScaler(low=0, high=100), quick(epochs=10))
    pipeline.fit(50 * X + 50, y)
    assert pipeline.score(50 * X + 50, y) > 0.8
    assert clone(pipeline).get_params()["privateclassifier__epochs"] == 10


def test_a_fitted_classifier_survives_pickle_with_its_promise():
    X, y = points()
    classifier = quick().fit(X, y)
    again = pickle.loads(pickle.dumps(classifier))
    assert again.privacy_ == classifier.privacy_ and (again.predict(X) == classifier.predict(X)).all()


def test_features_keep_their_names():
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is missing: no table whose columns have names")
    X, y = points()
    table = pyarrow.table({"age": X[:, 0], "income": X[:, 1]})
    classifier = quick().fit(table, y)
    assert classifier.feature_names_in_.tolist() == ["age", "income"] and classifier.n_features_in_ == 2
    assert (classifier.predict(table) == quick().fit(X, y).predict(X)).all()


def test_a_fit_like_one_before_asks_the_accountant_nothing_new():
    X, y = points(100)
    quick(batch_size=50).fit(X, y)
    worked_out = pld._epsilon.cache_info().misses
    quick(batch_size=50, random_state=1).fit(X, y)
    assert pld._epsilon.cache_info().misses == worked_out > 0


def test_the_linear_model_starts_at_zero():
    assert not torch.cat([x.flatten() for x in linear(3, 2).parameters()]).any()
