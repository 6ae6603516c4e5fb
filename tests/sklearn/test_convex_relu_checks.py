"""scikit-learn's own checks of the convex ReLU estimators, without an exception.

At epsilon 1 the 200 rows of a check have an R^2 of 0.4 to 0.65, by chance above or below the 0.5 that it asks for; at 3
it is 0.65 to 0.77.
"""

from sklearn.utils.estimator_checks import parametrize_with_checks

from sordino.sklearn import ConvexReLUClassifier, ConvexReLURegressor


@parametrize_with_checks([ConvexReLUClassifier(), ConvexReLURegressor(target_range=(-3, 3), epsilon=3.0)])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
