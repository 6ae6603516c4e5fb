"""scikit-learn's own checks, all of them: noise from a seed is as reproducible as any other randomness."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from sordino.sklearn import PrivateClassifier, PrivateRegressor, PublicScaler


@parametrize_with_checks([PrivateClassifier(), PrivateRegressor(bounds=(-3, 3)), PublicScaler(low=-3, high=3)])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
