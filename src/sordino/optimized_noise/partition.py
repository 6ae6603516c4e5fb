"""Which coordinates share a block: the partition with the smallest cost, by dynamic programming on sorted weights.

At the best rates the cost is a rising function of sum_b A_b^(2 / (p + 2)), with A_b = W_b moment(d_b), W_b the sum of
the block's weights and p the cost's power. At given sizes this is concave in how two blocks share their weights, so one
of them has the largest: each block of a best partition is a run of the sorted weights.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.optimized_noise.costs import Cost

CELLS = 256


def best_partition(weights: NDArray[np.float64], cost: Cost, cells: int = CELLS) -> NDArray[np.int64]:
    """The block of each coordinate. Exact up to `cells` coordinates; beyond, blocks begin where cells of weights do.

    A run of cells is one block, or its coordinates are blocks of their own. So the result is never worse than one block
    of all coordinates, or than none shared, whatever the cells.

    >>> from sordino.optimized_noise.costs import AbsoluteCost
    >>> best_partition(np.array([1.0, 100.0, 1.1, 90.0]), AbsoluteCost()).tolist()
    [0, 1, 0, 1]
    """
    order = np.argsort(weights, kind="stable")
    ranked = weights[order] / weights[order[-1]]
    borders = _borders(ranked, cells)
    together, apart = _together(ranked, borders, cost), _apart(ranked, borders, cost)
    begins = np.zeros(len(ranked), np.int64)
    for first, last in pairwise(_cheapest_way(np.minimum(together, apart))):
        shared = together[first, last] <= apart[first, last]
        begins[borders[first] : borders[first] + 1 if shared else borders[last]] = 1
    block_of = np.empty(len(ranked), np.int64)
    block_of[order] = np.cumsum(begins) - 1
    return block_of


def _borders(ranked: NDArray[np.float64], cells: int) -> NDArray[np.int64]:
    """Where cells begin, and the end: half of them have equal ratios of weights, half have equal numbers."""
    size = len(ranked)
    if size <= cells:
        return np.arange(size + 1)
    by_ratio = np.searchsorted(ranked, np.geomspace(ranked[0], ranked[-1], cells // 2 + 1))
    by_number = np.linspace(0, size, cells // 2 + 1).astype(np.int64)
    return np.unique(np.concatenate([by_ratio, by_number]))


def _together(ranked: NDArray[np.float64], borders: NDArray[np.int64], cost: Cost) -> NDArray[np.float64]:
    """[i, j]: what the coordinates from border i to border j add as one block; infinite where there are none."""
    sums = np.concatenate([[0.0], np.cumsum(ranked)])[borders]
    sizes = borders[None] - borders[:, None]
    added = np.full(sizes.shape, np.inf)
    upper = np.triu_indices(len(borders), 1)
    added[upper] = ((sums[None] - sums[:, None])[upper] * cost.moment(sizes[upper])) ** _exponent(cost)
    return added


def _apart(ranked: NDArray[np.float64], borders: NDArray[np.int64], cost: Cost) -> NDArray[np.float64]:
    """[i, j]: what the same coordinates add as blocks of their own."""
    alone = (ranked * cost.moment(np.ones(1, np.int64))) ** _exponent(cost)
    sums = np.concatenate([[0.0], np.cumsum(alone)])[borders]
    return np.where(np.triu(np.ones((len(borders),) * 2, bool), 1), sums[None] - sums[:, None], np.inf)


def _cheapest_way(added: NDArray[np.float64]) -> list[int]:
    """The borders of the cheapest way from the first to the last, where going from i to j adds added[i, j]."""
    ends = len(added)
    cheapest, came_from = np.zeros(ends), np.zeros(ends, np.int64)
    for end in range(1, ends):
        ways = cheapest[:end] + added[:end, end]
        came_from[end] = np.argmin(ways)
        cheapest[end] = ways[came_from[end]]
    path = [ends - 1]
    while path[-1] > 0:
        path.append(int(came_from[path[-1]]))
    return path[::-1]


def _exponent(cost: Cost) -> float:
    return 2 / (cost.power + 2)
