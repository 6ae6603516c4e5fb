"""Private estimators for scikit-learn: what `sordino.fit` does, in the shape that pipelines and searches expect."""

from sordino.sklearn.classifier import PrivateClassifier as PrivateClassifier
from sordino.sklearn.convex_relu import ConvexReLUClassifier as ConvexReLUClassifier
from sordino.sklearn.convex_relu import ConvexReLURegressor as ConvexReLURegressor
from sordino.sklearn.noisy_accuracy import NoisyAccuracy as NoisyAccuracy
from sordino.sklearn.regressor import PrivateRegressor as PrivateRegressor
from sordino.sklearn.scaler import PublicScaler as PublicScaler
