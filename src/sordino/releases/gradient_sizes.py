"""Noisy sizes of gradients by coordinate, released once before training, as weights for optimized noise and scaling.

Each unit contributes the absolute values of its gradient at the current parameters, clipped. Absolute values have the
norm of the gradient itself; squared gradients would have much smaller norms and be lost in the noise.

Guarantee: replacing one unit by nothing moves the sum by at most the clip norm in L2, to which the noise is scaled. It
is one release of the noise's event, charged before a row is read. Everything after the noisy sum is post-processing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.encodings.codecs import MappedContributions
from sordino.gradients.row_loss import Loss
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.noise import Noise
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout
from sordino.optimized_noise.sources import Fixed

_ROWS_AT_A_TIME = 256


def release_sensitivity(
    budget: Budget,
    model: nn.Module,
    *,
    noise: Noise,
    clip_norm: float = 1.0,
    loss: Loss = F.cross_entropy,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    seed: int | None = None,
) -> Fixed:
    """Releases the size of the gradient of `model` in each coordinate, as weights for `OptimizedNoise` and `Matched`.

    `noise` is `Gaussian`, or `OptimizedNoise` if the guarantee has to be pure. Sizes below the standard deviation of
    their noise carry no information and are raised to it. With a `seed` the result is reproducible, and whoever knows
    the seed can remove the noise.

    >>> from sordino.kernel.noise import Gaussian
    >>> model, data = nn.Linear(4, 3), (torch.rand(500, 4), torch.zeros(500, dtype=torch.int64))
    >>> budget = Budget(data)
    >>> release_sensitivity(budget, model, noise=Gaussian(5.0), seed=0).weights.shape, budget.releases
    (torch.Size([15]), ('sizes of gradients',))
    """
    validate.instance(Budget, budget=budget)
    validate.instance(nn.Module, model=model)
    validate.instance(Noise, noise=noise)
    key = Key.fresh() if seed is None else Key.from_seed(seed)
    clip, gradient = ClipByNorm(clip_norm), LossGradient(loss)
    gradient.check(model, budget.records)
    private = budget.release(
        "sizes of gradients",
        noise=noise,
        adjacency=adjacency,
        key=key,
        total_of=lambda: _sum_of_sizes(budget, model, gradient, clip),
        delta=budget.delta or 0.0,
    )
    noise_std = torch.as_tensor(private.noise_square, dtype=torch.float64).sqrt()
    return Fixed(private.value.maximum(noise_std))


def _sum_of_sizes(budget: Budget, model: nn.Module, gradient: LossGradient, clip: ClipByNorm) -> BoundedSum:
    records, layout = budget.records, Layout.of(model)
    total = BoundedSum.of_nobody(clip.bound, layout)
    for units in torch.split(torch.arange(records.num_units), max(1, _ROWS_AT_A_TIME // records.rows_per_unit)):
        batch = records.gather(units)
        each = gradient.of(model, batch, torch.arange(len(batch.units)))
        total += clip(MappedContributions(each, layout, torch.abs))
    return total
