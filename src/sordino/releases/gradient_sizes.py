"""Weights for noise and scales, bought once before training: the sizes of all units' gradients, released with noise.

A unit adds the absolute values of its gradient at the parameters that the model has now, scaled down to the clip norm.
They have the norm of the gradient itself, where squares would be much shorter and be lost in the noise; so the squares
that are returned are those of the sizes.

Guarantee: replacing one unit by nothing moves the sum by at most the clip norm in L2, which the noise reads. It is one
release of the noise's event, charged before a row is read. What is made of the noisy sum is post-processing.
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
    """The size of the gradient of `model` in each coordinate, as weights for `OptimizedNoise` and `Matched`.

    `noise` is `Gaussian`, or `OptimizedNoise` where everything is to be pure. Sizes below one standard deviation of
    theirs could as well be noise, and are raised to it. With a `seed` they are reproducible, and whoever knows the seed
    can remove the noise.

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
    known_to = torch.as_tensor(private.noise_square, dtype=torch.float64).sqrt()
    return Fixed(private.value.maximum(known_to))


def _sum_of_sizes(budget: Budget, model: nn.Module, gradient: LossGradient, clip: ClipByNorm) -> BoundedSum:
    records, layout = budget.records, Layout.of(model)
    total = BoundedSum.of_nobody(clip.bound, layout)
    for units in torch.split(torch.arange(records.num_units), max(1, _ROWS_AT_A_TIME // records.rows_per_unit)):
        batch = records.gather(units)
        each = gradient.of(model, batch, torch.arange(len(batch.units)))
        total += clip(MappedContributions(each, layout, torch.abs))
    return total
