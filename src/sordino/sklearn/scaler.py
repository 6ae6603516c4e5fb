"""`PublicScaler`: scaling of features by public ranges, which does not depend on the data."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin

from sordino._input import validate
from sordino.errors import UsageError
from sordino.sklearn.estimator import checked


class PublicScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Scales each feature from its public range [`low`, `high`] to [-1, 1], and clips values outside.

    `low` and `high` are scalars or have one value per feature. `fit` learns only the number of features. Values that
    are not finite become NaN, which makes a private estimator ignore the row.

    >>> PublicScaler(low=[0, 1900], high=[1, 2000]).fit_transform([[0.5, 1925], [2.0, 2000]]).tolist()
    [[0.0, -0.5], [1.0, 1.0]]
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low = low
        self.high = high

    def fit(self, X: object, y: object = None) -> Self:
        """Stores the number and the names of the features. Does not depend on their values."""
        self._bounds(checked(self, X, dtype=[np.float64, np.float32], ensure_all_finite=False))
        return self

    def transform(self, X: object) -> NDArray[Any]:
        """Returns the scaled rows. Each row is scaled on its own."""
        features = checked(self, X, reset=False, dtype=[np.float64, np.float32], ensure_all_finite=False)
        low, high = self._bounds(features)
        middle, half = (low + high) / 2, (high - low) / 2
        scaled: NDArray[Any] = np.clip((np.where(np.isfinite(features), features, np.nan) - middle) / half, -1.0, 1.0)
        return scaled

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _bounds(self, features: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Both ends of the range, in the dtype of the rows."""
        low, high = _ends("low", self.low, features), _ends("high", self.high, features)
        if not (low < high).all():
            raise UsageError(f"low must be below high, got {validate.shown(self.low)} and {validate.shown(self.high)}.")
        return low, high


def _ends(name: str, value: ArrayLike, features: NDArray[Any]) -> NDArray[Any]:
    ends = np.asarray(value)
    numeric = ends.dtype.kind in "iuf" and ends.shape in ((), (features.shape[1],))
    if not numeric or not np.isfinite(ends).all():
        expected = f"a finite number, or one for each of {features.shape[1]} features"
        raise UsageError(f"{name} must be {expected}, got {validate.shown(value)}.")
    return ends.astype(features.dtype)
