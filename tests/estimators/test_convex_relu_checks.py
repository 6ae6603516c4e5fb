"""scikit-learn's own checks of the convex ReLU estimators, without an exception."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from sordino.sklearn import ConvexReLUClassifier, ConvexReLURegressor


@parametrize_with_checks([ConvexReLUClassifier(), ConvexReLURegressor(target_range=(-3, 3))])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
