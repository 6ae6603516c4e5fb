"""What privacy asks of a density on a grid: by how much its logarithm may differ across which offsets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, hypot
from typing import Protocol, TypeAlias

from sordino._input import validate

Offset: TypeAlias = tuple[int, ...]

_SLACK = 1e-9  # a distance that is a whole number of grid steps counts as one in spite of rounding


class Constraint(Protocol):
    """What a density must obey, as differences across offsets."""

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        """Offsets in grid steps, each with the largest difference of log-densities across it."""
        ...


@dataclass(frozen=True)
class WithinSensitivity:
    """Differential privacy itself: at most epsilon across any distance up to the sensitivity.

    >>> dict(WithinSensitivity().allowed(1.0, 0.2, 0.1, dimension=1))
    {(-2,): 1.0, (-1,): 1.0, (1,): 1.0, (2,): 1.0}
    """

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        furthest = sensitivity / spacing + _SLACK
        for offset in product(range(-int(furthest), int(furthest) + 1), repeat=dimension):
            if 0 < hypot(*offset) <= furthest:
                yield offset, epsilon


@dataclass(frozen=True)
class PerDistance:
    """What norms obey: at most epsilon / sensitivity per unit of any distance, however small.

    Points up to `reach` grid steps apart are compared: with more of them, paths come closer to straight lines.

    >>> dict(PerDistance().allowed(1.0, 0.2, 0.1, dimension=1))
    {(-1,): 0.5, (1,): 0.5}
    """

    reach: int = 3

    def __post_init__(self) -> None:
        validate.count(at_most=16, reach=self.reach)

    def allowed(
        self, epsilon: float, sensitivity: float, spacing: float, dimension: int
    ) -> Iterator[tuple[Offset, float]]:
        for offset in product(range(-self.reach, self.reach + 1), repeat=dimension):
            if gcd(*offset) == 1:  # the others are several of these in a row
                yield offset, hypot(*offset) * spacing * epsilon / sensitivity
