"""scikit-learn's own checks, all of them: noise from a seed is as reproducible as any other randomness."""

import pytest
from estimators import every_check

from sordino.sklearn import PrivateClassifier, PrivateRegressor, PublicScaler


@pytest.mark.parametrize(
    ("estimator", "check"),
    every_check(PrivateClassifier(), PrivateRegressor(bounds=(-3, 3)), PublicScaler(low=-3, high=3)),
)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
