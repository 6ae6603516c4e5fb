"""What an audit is computed from: a score for each canary, and whether it was included.

Guarantee: every bound in this package holds for any scores whatever, if each canary was included by a fair coin of its
own, thrown before training. Good scores only make it larger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.errors import UsageError

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Scores:
    """One score for each canary, higher where it looks included, and the coins. The order says nothing about the coins.

    >>> Scores(np.array([2.0, -1.0, 0.5]), np.array([True, False, True])).number
    3
    >>> Scores(np.array([2.0, 1.0]), np.array([True, True]))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: included must hold both outcomes of the coins, got all 2 canaries in.
    """

    values: Values = field(repr=False)
    included: Flags = field(repr=False)

    def __post_init__(self) -> None:
        values, included = np.asarray(self.values), np.asarray(self.included)
        if values.dtype.kind not in "fiub":
            raise UsageError(f"scores must be numbers, got {validate.described(values)}.")
        values = values.astype(np.float64)
        if values.ndim != 1 or values.shape != included.shape or included.dtype != np.bool_:
            raise UsageError(
                f"scores must be one number and one True or False per canary, got shapes {values.shape} and "
                f"{included.shape} of {included.dtype}."
            )
        if len(values) == 0:
            raise UsageError("scores must be of at least one canary, got none.")
        if np.isnan(values).any():
            raise UsageError(f"scores must be numbers, got {int(np.isnan(values).sum())} that are NaN.")
        if included.all() or not included.any():
            found = "in" if included.any() else "out"
            raise UsageError(f"included must hold both outcomes of the coins, got all {len(values)} canaries {found}.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "included", included)

    @property
    def number(self) -> int:
        return len(self.values)

    def halves(self, randomness: np.random.Generator) -> tuple[Scores, Scores]:
        """A half to choose on and a half to judge on. Who is in which is drawn without looking at scores or coins.

        So the coins of the second half are as fair as before, whatever was chosen on the first.
        """
        validate.count(at_least=4, canaries_to_split=self.number)
        order = randomness.permutation(self.number)
        first, second = order[: self.number // 2], order[self.number // 2 :]
        return Scores(self.values[first], self.included[first]), Scores(self.values[second], self.included[second])


def pooled(runs: list[Scores]) -> Scores:
    """The canaries of several independent trainings together: each of them still meets one release of the guarantee."""
    return Scores(np.concatenate([run.values for run in runs]), np.concatenate([run.included for run in runs]))
