"""The best noise of each family for public weights, and the best partition of coordinates into blocks.

The noise is optimal at a given Lipschitz constant s (epsilon / sensitivity). Let A_b = W_b moment(d_b), with W_b the
sum of the weights of block b and d_b its size. The cost of rates c is sum_b A_b / c_b^p, where p is the cost's power.
On the sphere ||c||_2 = s it is smallest for c_b proportional to A_b^(1 / (p + 2)).

The partition is found by dynamic programming on sorted weights. At the best rates the cost is an increasing function of
sum_b A_b^(2 / (p + 2)). For given sizes this is concave in the division of weights between two blocks, so one of them
has all the larger weights: each block of a best partition is a contiguous run of the sorted weights.
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
    """Returns the block of each coordinate. Exact for up to `cells` coordinates.

    With more coordinates, sorted weights are grouped into cells. A run of cells becomes one block, or each of its
    coordinates becomes a block. So the result is never worse than a single block or than blocks of one coordinate.

    >>> from sordino.optimized_noise.costs import AbsoluteCost
    >>> best_partition(np.array([1.0, 100.0, 1.1, 90.0]), AbsoluteCost()).tolist()
    [0, 1, 0, 1]
    """
    order = np.argsort(weights, kind="stable")
    ranked = weights[order] / weights[order[-1]]
    borders = _borders(ranked, cells)
    together, apart = _together(ranked, borders, cost), _apart(ranked, borders, cost)
    begins = np.zeros(len(ranked), np.int64)
    for first, last in pairwise(_cheapest_path(np.minimum(together, apart))):
        is_one_block = together[first, last] <= apart[first, last]
        begins[borders[first] : borders[first] + 1 if is_one_block else borders[last]] = 1
    block_of = np.empty(len(ranked), np.int64)
    block_of[order] = np.cumsum(begins) - 1
    return block_of


def _borders(ranked: NDArray[np.float64], cells: int) -> NDArray[np.int64]:
    """Borders of cells: half of them divide the weights by equal ratios, half by equal counts."""
    size = len(ranked)
    if size <= cells:
        return np.arange(size + 1)
    by_ratio = np.searchsorted(ranked, np.geomspace(ranked[0], ranked[-1], cells // 2 + 1))
    by_count = np.linspace(0, size, cells // 2 + 1).astype(np.int64)
    return np.unique(np.concatenate([by_ratio, by_count]))


def _together(ranked: NDArray[np.float64], borders: NDArray[np.int64], cost: Cost) -> NDArray[np.float64]:
    """Entry [i, j] is the cost of the coordinates from border i to border j as one block; infinite for j <= i."""
    sums = np.concatenate([[0.0], np.cumsum(ranked)])[borders]
    sizes = borders[None] - borders[:, None]
    added = np.full(sizes.shape, np.inf)
    upper = np.triu_indices(len(borders), 1)
    added[upper] = ((sums[None] - sums[:, None])[upper] * cost.moment(sizes[upper])) ** _exponent(cost)
    return added


def _apart(ranked: NDArray[np.float64], borders: NDArray[np.int64], cost: Cost) -> NDArray[np.float64]:
    """Entry [i, j] is the cost of the coordinates from border i to border j as blocks of one coordinate."""
    alone = (ranked * cost.moment(np.ones(1, np.int64))) ** _exponent(cost)
    sums = np.concatenate([[0.0], np.cumsum(alone)])[borders]
    return np.where(np.triu(np.ones((len(borders),) * 2, bool), 1), sums[None] - sums[:, None], np.inf)


def _cheapest_path(costs: NDArray[np.float64]) -> list[int]:
    """The borders on the cheapest path from the first to the last border, where the edge (i, j) costs costs[i, j]."""
    ends = len(costs)
    cheapest, previous = np.zeros(ends), np.zeros(ends, np.int64)
    for end in range(1, ends):
        totals = cheapest[:end] + costs[:end, end]
        previous[end] = np.argmin(totals)
        cheapest[end] = totals[previous[end]]
    path = [ends - 1]
    while path[-1] > 0:
        path.append(int(previous[path[-1]]))
    return path[::-1]


def _exponent(cost: Cost) -> float:
    return 2 / (cost.power + 2)


_ROUNDED_DOWN = 1 - 2.0**-40  # so that rounding never makes the norm of the rates exceed `lipschitz`


def weighted_laplace(weights: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """Independent Laplace noise with the best rate for each coordinate.

    >>> weighted_laplace(torch.tensor([8.0, 1.0]), 1.0).expected_absolute()
    tensor([1.1180, 2.2361], dtype=torch.float64)
    """
    values = usable_weights(weights).values
    return of_blocks(values, torch.arange(len(values)), lipschitz, cost)


def isotropic(weights: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """Isotropic noise (the K-norm mechanism). It depends on the number of weights only.

    >>> isotropic(torch.tensor([8.0, 1.0]), 2.0).rates
    tensor([2.0000], dtype=torch.float64)
    """
    values = usable_weights(weights).values
    return of_blocks(values, torch.zeros(len(values), dtype=torch.int64), lipschitz, cost)


def best_blocks(weights: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """Block-norm noise with the best partition. Its cost is never above that of the other two families.

    >>> best_blocks(torch.tensor([8.0, 1.0, 8.0]), 1.0).block_of
    tensor([1, 0, 1])
    """
    values = usable_weights(weights).values
    return of_blocks(values, torch.from_numpy(best_partition(values.numpy(), cost)), lipschitz, cost)


def of_blocks(weights: Tensor, block_of: Tensor, lipschitz: float, cost: Cost = ABSOLUTE) -> BlockNorm:
    """Block-norm noise with the best rates for given blocks.

    >>> of_blocks(torch.ones(3), torch.tensor([0, 0, 1]), 1.0).rates
    tensor([0.8068, 0.5908], dtype=torch.float64)
    """
    validate.positive(lipschitz=lipschitz)
    values = usable_weights(weights).values
    if block_of.shape != values.shape:
        raise UsageError(f"block_of must have {len(values)} entries, one per weight, got {block_of.numel()}.")
    blocks = block_of.cpu().numpy()
    sums, sizes = np.bincount(blocks, (values / values.max()).numpy()), np.bincount(blocks)
    rates = (sums * cost.moment(sizes)) ** (1 / (cost.power + 2))
    return BlockNorm(block_of, torch.from_numpy(rates * (_ROUNDED_DOWN * lipschitz / np.linalg.norm(rates))))
