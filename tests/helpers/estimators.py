"""scikit-learn's own checks of estimators."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator


def every_check(*estimators: Any) -> list[Any]:
    """The checks of each estimator. Those that repeat a training with rows that may only be read are slow tests."""
    return [
        pytest.param(
            made, check, marks=[pytest.mark.slow] if "readonly_memmap" in check.keywords else [], id=_id(check)
        )
        for estimator in estimators
        for made, check in estimator_checks_generator(estimator)
    ]


def _id(check: Any) -> str:
    settings = ",".join(f"{name}={value}" for name, value in check.keywords.items())
    return f"{check.args[0]}-{check.func.__name__}({settings})"
