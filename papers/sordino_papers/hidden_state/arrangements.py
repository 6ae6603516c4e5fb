"""Hyperplane arrangements of a small dataset: all activation patterns of a ReLU unit."""

from __future__ import annotations

from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from sordino.errors import UsageError

Array = NDArray[np.float64]
_MOST_PATTERNS = 10_000


def arrangements(rows: Array) -> NDArray[np.bool_]:
    """All patterns 1(X u > 0) of open cells, one per row of the result, for small n and d: they grow like n^(d-1).

    Each cell has a ray on its boundary that is orthogonal to d - 1 rows. Each such ray is visited in both directions:
    the signs of the other rows are known there, and the d - 1 rows take every combination of signs nearby, because they
    are linearly independent. Assumes general position: no further row is orthogonal to the ray.

    >>> arrangements(np.array([[1.0, 0.0], [0.0, 1.0]])).astype(int).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    number, size = rows.shape
    if (expected := number_of_cells(number, size)) > _MOST_PATTERNS:
        raise UsageError(f"rows must have at most {_MOST_PATTERNS} arrangements to enumerate, got {expected}.")
    sides = np.array(np.meshgrid(*[[False, True]] * (size - 1), indexing="ij")).reshape(size - 1, -1).T
    found = []
    for chosen in combinations(range(number), size - 1):
        ray = np.linalg.svd(rows[list(chosen)])[2][-1]
        for end in (ray, -ray):
            pattern = np.repeat((rows @ end > 0)[None], len(sides), axis=0)
            pattern[:, list(chosen)] = sides
            found.append(pattern)
    patterns: NDArray[np.bool_] = np.unique(np.concatenate(found), axis=0)
    return patterns


def number_of_cells(rows: int, size: int) -> int:
    """Number of cells into which this many hyperplanes through the origin divide space, in general position (Cover
    1965).

    >>> number_of_cells(rows=15, size=3)
    212
    """
    return 2 * sum(comb(rows - 1, k) for k in range(size))


def random_arrangements(rows: Array, number: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Patterns of `number` random gates, in the order drawn and with repetitions."""
    drawn: NDArray[np.bool_] = rows @ rng.normal(size=(rows.shape[1], number)) >= 0
    return drawn.T


def into_cone(rows: Array, pattern: NDArray[np.bool_], vector: Array) -> Array:
    """The nearest u with X u >= 0 where the pattern is open and X u <= 0 elsewhere.

    By Moreau's decomposition it is the vector plus A^T l, l >= 0 making it smallest, for the cone A u >= 0.

    >>> into_cone(np.eye(2), np.array([True, False]), np.array([-1.0, -2.0])).tolist()
    [0.0, -2.0]
    """
    walls = np.where(pattern, 1.0, -1.0)[:, None] * rows
    multipliers, _ = nnls(walls.T, -vector)
    nearest: Array = vector + walls.T @ multipliers
    return nearest
