"""Colours by the axes along which they vary in photographs: brightness, red against blue, green against both.

Red, green and blue mostly rise and fall together, so that what sets a colour apart is lost beside its brightness. Along
these axes it is not (Ohta, Kanade and Sakai 1980). They are as public as the colours of photographs at large.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MEAN = (0.485, 0.456, 0.406)  # of red, green and blue in photographs at large, on the scale from 0 to 1
_AXES = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (-1.0, 2.0, -1.0))
# Of colours along the axes, in that of brightness: the roots of the variances that are published for ImageNet along
# its principal axes of colour, which are nearly these (0.2175, 0.0188 and 0.0045), rounded.
_SPREAD = (1.0, 0.3, 0.15)


def opponent(pixels: Tensor) -> Tensor:
    """Red, green and blue [n, 3, ...] on the scale from 0 to 1, along the three axes, about as wide along each.

    >>> grey, red = torch.full((3, 1), 0.5), torch.tensor([[1.0], [0.0], [0.0]])
    >>> opponent(torch.stack([grey, red])).squeeze().round(decimals=1)
    tensor([[ 0.1000, -0.2000, -0.1000],
            [-0.2000,  2.2000, -2.8000]])
    """
    axes = torch.tensor(_AXES)
    axes = axes / axes.norm(dim=1, keepdim=True) / torch.tensor(_SPREAD)[:, None]
    mean = torch.tensor(_MEAN).reshape(3, *(1,) * (pixels.ndim - 2))
    return torch.einsum("ac,nc...->na...", axes, pixels - mean)
