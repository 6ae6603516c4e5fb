"""Symmetric deviations, all masks of a rate, and the lemmas' two sides computed from them by their definitions.

A sample with all its opposites is a symmetric distribution itself, so the lemmas hold for it to the last digit: what
is drawn at random is the distribution, not an estimate.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import torch
from torch import Tensor

DIMENSION = 6


def with_opposites(deviations: Tensor) -> Tensor:
    return torch.cat([deviations, -deviations])


def _sphere(normals: Tensor) -> Tensor:
    return normals / normals.norm(dim=1, keepdim=True)


# Distributions around 0, by name, as functions of standard normals (n, d); each times a length of choice.
DEVIATIONS = {
    "normal": lambda normals: normals / DIMENSION**0.5,
    "sphere": _sphere,
    "heavy tails": lambda normals: _sphere(normals) / normals[:, :1].abs(),
    "one axis": lambda normals: normals * torch.eye(DIMENSION)[0].double(),
    "two clusters": lambda normals: _sphere(normals[:1].expand_as(normals)) + 0.1 * normals,
}


def draw(name: str, length: float, seed: int, number: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normals = torch.randn(number, DIMENSION, generator=generator, dtype=torch.float64)
    return with_opposites(length * DEVIATIONS[name](normals))


@cache
def all_masks(zeroed: int) -> Tensor:
    """Each mask of this rate once, so that means over them are expectations."""
    return torch.tensor(
        [[axis not in zeros for axis in range(DIMENSION)] for zeros in combinations(range(DIMENSION), zeroed)]
    )


def clipped(rows: Tensor, norm: float) -> Tensor:
    return rows * (norm / rows.norm(dim=-1, keepdim=True)).clamp(max=1.0)


def progress(gradient: Tensor, deviations: Tensor, norm: float) -> float:
    """E <grad, clip(grad + xi)>."""
    return float((clipped(gradient + deviations, norm) @ gradient).mean())


def reached(gradient: Tensor, deviations: Tensor, norm: float, *, quarter: float = 0.25, short: float = 0.75) -> Tensor:
    """P(|xi| < 3C/4) min(|grad|, C/4) |grad|, for one gradient (d) and its deviations (n, d), or for several."""
    inside = (deviations.norm(dim=-1) < short * norm).double().mean(dim=-1)
    length = gradient.norm(dim=-1)
    return inside * length.clamp(max=quarter * norm) * length


def kappa(gradient: Tensor, deviations: Tensor, norm: float, masks: Tensor) -> float:
    """The ratio that Lemma 3.3 is about."""
    under_masks = reached(masks * gradient, masks[:, None] * deviations, norm)
    return float(under_masks.mean() / reached(gradient, deviations, norm))
