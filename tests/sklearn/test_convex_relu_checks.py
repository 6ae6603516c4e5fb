"""scikit-learn's own checks of the convex ReLU estimators, all of them.

One check needs an R^2 of 0.5 on 200 rows. At epsilon 1 it is 0.4 to 0.65, so the test uses epsilon 3: 0.65 to 0.77.
"""

import pytest
from estimators import every_check

from sordino.sklearn import ConvexReLUClassifier, ConvexReLURegressor


@pytest.mark.parametrize(
    ("estimator", "check"), every_check(ConvexReLUClassifier(), ConvexReLURegressor(target_range=(-3, 3), epsilon=3.0))
)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
