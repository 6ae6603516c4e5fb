"""Helpers for tests of block norms: families by name, lognormal weights, and many samples at once."""

from __future__ import annotations

import torch
from contracts import stream

from sordino.optimized_noise import AbsoluteCost, BlockNorm, SquaredCost, best_blocks, isotropic, weighted_laplace

FAMILIES = [weighted_laplace, isotropic, best_blocks]
COSTS = [AbsoluteCost(), SquaredCost()]


def lognormal(dimension, tau=1.0, seed=0, zeros=0):
    """Weights exp(tau N(0, 1)), the first few of them zero."""
    weights = (tau * torch.randn(dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))).exp()
    weights[:zeros] = 0
    return weights


def copied(noise, copies):
    """Independent copies of a noise, side by side."""
    shifts = len(noise.rates) * torch.arange(copies)[:, None]
    return BlockNorm((noise.block_of + shifts).flatten(), noise.rates.repeat(copies))


def draws(noise, copies, seed=0):
    """Independent samples, one per row."""
    return copied(noise, copies).sample(stream("noise", seed), step=0).reshape(copies, noise.dimension)
