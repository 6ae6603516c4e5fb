"""A mean with an interval, of errors or of pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from sordino.errors import UsageError


@dataclass(frozen=True)
class Estimated:
    """A mean with the ends of its 95 % interval (Student's).

    >>> found = Estimated.of([1.0, 2.0, 3.0])
    >>> found.value, round(found.low, 2), round(found.high, 2)
    (2.0, -0.48, 4.48)
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimated:
        """Of at least two values. One that is not known makes the mean infinite."""
        if len(values) < 2:
            raise UsageError(f"an interval needs at least 2 values, got {len(values)}.")
        if not np.isfinite(values).all():
            return cls(math.inf, math.inf, math.inf)
        mean = float(np.mean(values))
        reach = float(student.ppf(0.975, len(values) - 1)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        return cls(mean, mean - reach, mean + reach)
