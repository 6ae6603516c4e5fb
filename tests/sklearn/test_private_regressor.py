"""`PrivateRegressor`: targets and predictions between public bounds."""

import numpy as np
import pytest
import torch

from sordino.errors import UsageError
from sordino.sklearn import PrivateRegressor


def prices(number=400):
    X = np.random.default_rng(0).uniform(-1, 1, (number, 2))
    return X, 50 + 40 * X[:, 0]


def test_it_learns_at_epsilon_one():
    X, y = prices()
    regressor = PrivateRegressor(bounds=(0, 100), random_state=0).fit(X, y)
    assert regressor.score(X, y) > 0.8
    assert 0.99 < regressor.privacy_.epsilon <= 1.0


def test_a_target_beyond_the_bounds_counts_as_the_nearest_bound():
    X, y = prices()
    y[:20], y[20:40] = 100, 0
    beyond = y.copy()
    beyond[:20], beyond[20:40] = 1e9, -1e9
    one, other = (PrivateRegressor(bounds=(0, 100), random_state=0).fit(X, each) for each in (y, beyond))
    assert torch.equal(one.module_.weight, other.module_.weight)


def test_predictions_stay_within_the_bounds_of_the_fit():
    regressor = PrivateRegressor(bounds=(0, 100), random_state=0).fit(*prices())
    regressor.set_params(bounds=(7, 8))
    assert regressor.predict([[-1e4, 0.0], [1e4, 0.0]]).tolist() == [0, 100]


@pytest.mark.parametrize("bounds", [(1, 0), (0, 0), (0, float("inf")), (0, 1, 2), 5, None, ("a", "b")])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(UsageError, match="bound"):
        PrivateRegressor(bounds=bounds).fit(*prices())


@pytest.mark.parametrize("hole", [np.nan, np.inf])
def test_a_hole_in_a_row_or_in_its_target_makes_the_row_absent(hole):
    X, y = prices()
    holes, targets = X.copy(), y.copy()
    holes[17, 1] = targets[17] = hole
    one, other = (PrivateRegressor(bounds=(0, 100), random_state=0).fit(*each) for each in ((holes, y), (X, targets)))
    assert torch.equal(one.module_.weight, other.module_.weight)


def test_a_target_that_is_no_number_is_a_hole_unless_none_is_one():
    X, y = prices()
    mixed = y.astype(object)
    mixed[17], mixed[18] = "ALICE", None
    assert PrivateRegressor(bounds=(0, 100), random_state=0).fit(X, mixed).privacy_.epsilon <= 1.0
    with pytest.raises(UsageError, match="y must contain finite numbers, got none"):
        PrivateRegressor(bounds=(0, 100)).fit(X, np.full(len(X), "ALICE"))


def test_bounds_have_to_be_said():
    with pytest.raises(TypeError, match="bounds"):
        PrivateRegressor()
