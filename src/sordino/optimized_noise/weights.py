"""How much noise hurts in each coordinate, checked once for every family of noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.errors import UsageError

# The best rates go with the cube root of a weight, so that a weight of zero would mean noise without limit. At this
# share of the largest weight a coordinate on its own gets 100 times the noise of the one that hurts most.
SMALLEST_SHARE = 1e-6


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights above zero, and how many of them were raised to `SMALLEST_SHARE` of the largest."""

    values: Tensor = field(repr=False)
    floored: int


def usable_weights(weights: Tensor | NDArray[np.floating] | Sequence[float]) -> Weights:
    """Refuses what is not a weight, and raises those that are too small.

    A message tells how many weights are wrong and never their values, which may come from private rows.

    >>> usable = usable_weights([4.0, 0.0, 1.0])
    >>> usable.floored, usable.values.tolist()
    (1, [4.0, 4e-06, 1.0])
    """
    values = torch.as_tensor(weights, dtype=torch.float64).detach().cpu()
    if values.dim() != 1 or values.numel() == 0:
        raise UsageError(f"weights must be a vector of at least one number, got shape {tuple(values.shape)}.")
    if wrong := int((~values.isfinite()).sum()):
        raise UsageError(f"weights must be finite, got {wrong} that are not.")
    if wrong := int((values < 0).sum()):
        raise UsageError(f"weights must be at least 0, got {wrong} below.")
    largest = values.max()
    if largest == 0:
        raise UsageError("weights must not all be 0, got nothing that noise could hurt.")
    smallest = torch.clamp(SMALLEST_SHARE * largest, min=torch.finfo(torch.float64).tiny)
    return Weights(values.clamp(min=smallest), int((values < smallest).sum()))
