"""The best noise of each family for public weights, and the best partition of coordinates into blocks.

Which coordinates share a block: the partition with the smallest cost, by dynamic programming on sorted weights.

At the best rates the cost is a rising function of sum_b A_b^(2 / (p + 2)), with A_b = W_b moment(d_b), W_b the sum of
the block's weights and p the cost's power. At given sizes this is concave in how two blocks share their weights, so one
of them has the largest: each block of a best partition is a run of the sorted weights.

The best noise of each family for given weights, at a given Lipschitz constant (epsilon / sensitivity).

With A_b = W_b moment(d_b) the cost of rates c is sum_b A_b / c_b^p. On the sphere ||c||_2 = s it is smallest where
c_b is proportional to A_b^(1 / (p + 2)).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.optimized_noise.block_norm import BlockNorm
from sordino.optimized_noise.costs import ABSOLUTE, Cost, usable_weights

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


_ROUNDED_DOWN = 1 - 2.0**-40  # so that rounding never makes rates longer than what was asked for


def weighted_laplace(weights: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """Independent Laplace noise.

    >>> weighted_laplace(torch.tensor([8.0, 1.0]), 1.0).expected_absolute()
    tensor([1.1180, 2.2361], dtype=torch.float64)
    """
    values = usable_weights(weights).values
    return of_blocks(values, torch.arange(len(values)), lipschitz, cost)


def isotropic(weights: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """The same noise in every direction: weights count for nothing but their number.

    >>> isotropic(torch.tensor([8.0, 1.0]), 2.0).rates
    tensor([2.0000], dtype=torch.float64)
    """
    values = usable_weights(weights).values
    return of_blocks(values, torch.zeros(len(values), dtype=torch.int64), lipschitz, cost)


def best_blocks(weights: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """Blocks of alike weights, so chosen that the cost is never above that of the other two families.

    >>> best_blocks(torch.tensor([8.0, 1.0, 8.0]), 1.0).block_of
    tensor([1, 0, 1])
    """
    values = usable_weights(weights).values
    return of_blocks(values, torch.from_numpy(best_partition(values.numpy(), cost)), lipschitz, cost)


def of_blocks(weights: Tensor, block_of: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """The best rates for given blocks.

    >>> of_blocks(torch.ones(3), torch.tensor([0, 0, 1]), 1.0).rates
    tensor([0.8068, 0.5908], dtype=torch.float64)
    """
    validate.positive(lipschitz=lipschitz)
    values = usable_weights(weights).values
    if block_of.shape != values.shape:
        raise UsageError(f"block_of must name {len(values)} blocks, one per weight, got {block_of.numel()}.")
    blocks = block_of.cpu().numpy()
    sums, sizes = np.bincount(blocks, (values / values.max()).numpy()), np.bincount(blocks)
    rates = (sums * cost.moment(sizes)) ** (1 / (cost.power + 2))
    return BlockNorm(block_of, torch.from_numpy(rates * (_ROUNDED_DOWN * lipschitz / np.linalg.norm(rates))))
