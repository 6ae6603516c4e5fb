"""scikit-learn's own checks of the convex ReLU estimators, all of them.

One check needs an R^2 of 0.5 on 200 rows. At epsilon 1 it is 0.4 to 0.65, so the test uses epsilon 3: 0.65 to 0.77.
"""

from sklearn.utils.estimator_checks import parametrize_with_checks

from sordino.sklearn import ConvexReLUClassifier, ConvexReLURegressor


@parametrize_with_checks([ConvexReLUClassifier(), ConvexReLURegressor(target_range=(-3, 3), epsilon=3.0)])
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)
