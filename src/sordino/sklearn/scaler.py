"""Scaling by what is known, in the place of scaling by what the rows say."""

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
    """Takes each feature from its public range [`low`, `high`] to [-1, 1]; what lies beyond becomes the nearest end.

    `low` and `high` are numbers, or one for each feature. `fit` learns nothing but how many features there are. What is
    not finite becomes NaN, by which a private estimator knows that its row is absent.

    >>> PublicScaler(low=[0, 1900], high=[1, 2000]).fit_transform([[0.5, 1925], [2.0, 2000]]).tolist()
    [[0.0, -0.5], [1.0, 1.0]]
    """

    def __init__(self, low: ArrayLike, high: ArrayLike) -> None:
        self.low = low
        self.high = high

    def fit(self, X: object, y: object = None) -> Self:
        """Notes the number and the names of the features."""
        self._bounds(checked(self, X, dtype=[np.float64, np.float32], ensure_all_finite=False))
        return self

    def transform(self, X: object) -> NDArray[Any]:
        """The rows, scaled one by one."""
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
        """Both ends in the dtype of the rows."""
        low, high = _ends("low", self.low, features), _ends("high", self.high, features)
        if not (low < high).all():
            raise UsageError(f"low must be below high, got {validate.shown(self.low)} and {validate.shown(self.high)}.")
        return low, high


def _ends(name: str, value: ArrayLike, features: NDArray[Any]) -> NDArray[Any]:
    given = np.asarray(value)
    numeric = given.dtype.kind in "iuf" and given.shape in ((), (features.shape[1],))
    if not numeric or not np.isfinite(given).all():
        expected = f"a finite number, or one for each of {features.shape[1]} features"
        raise UsageError(f"{name} must be {expected}, got {validate.shown(value)}.")
    return given.astype(features.dtype)
