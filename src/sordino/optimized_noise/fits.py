"""The best noise of each family for given weights, at a given Lipschitz constant (epsilon / sensitivity).

With A_b = W_b moment(d_b) the cost of rates c is sum_b A_b / c_b^p. On the sphere ||c||_2 = s it is smallest where
c_b is proportional to A_b^(1 / (p + 2)).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.optimized_noise.block_norm import BlockNorm
from sordino.optimized_noise.costs import ABSOLUTE, Cost
from sordino.optimized_noise.partition import best_partition
from sordino.optimized_noise.weights import usable_weights

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
