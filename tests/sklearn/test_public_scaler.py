"""`PublicScaler`: scaling by public bounds, independent of the rows."""

import numpy as np
import pytest

from sordino.errors import UsageError
from sordino.sklearn import PublicScaler


def test_what_it_does_to_a_row_does_not_depend_on_the_rows_it_was_fitted_on():
    rows = np.array([[0.2, 30.0], [0.9, 70.0]])
    here, there = (PublicScaler(low=[0, 0], high=[1, 100]).fit(rows * shift) for shift in (1, 1000))
    assert (here.transform(rows) == there.transform(rows)).all()
    assert vars(here) == vars(there)


def test_the_bounds_become_minus_one_and_one_and_hold_what_lies_beyond():
    scaler = PublicScaler(low=10, high=20).fit([[0.0]])
    assert scaler.transform([[10.0], [15.0], [20.0], [-1e9], [1e9]]).ravel().tolist() == [-1, 0, 1, -1, 1]


@pytest.mark.parametrize(
    ("low", "high"), [(1, 1), (2, 1), ([0, 0], [1, 0]), ([0, 0, 0], 1), (0, float("nan")), (None, 1), ("a", "b")]
)
def test_bounds_that_are_none_are_refused(low, high):
    with pytest.raises(UsageError, match="must be"):
        PublicScaler(low=low, high=high).fit(np.zeros((3, 2)))


def test_a_hole_stays_one_and_is_no_error():
    scaler = PublicScaler(low=10, high=20).fit([[np.nan]])
    assert np.isnan(scaler.transform([[np.nan], [np.inf], [-np.inf], [15.0]])).ravel().tolist() == [True] * 3 + [False]
