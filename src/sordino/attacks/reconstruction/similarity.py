"""Similarity of a reconstruction and the original image: mean squared error, PSNR and SSIM, for pixels from 0 to 1."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log10

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.errors import UsageError

_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


@dataclass(frozen=True)
class Likeness:
    """Similarity of two images. `flat_mse` is the error of an image with the original's mean colors only.

    >>> likeness = Likeness.of(torch.full((1, 3, 16, 16), 0.1), torch.zeros(1, 3, 16, 16))
    >>> round(likeness.mse, 6), round(likeness.psnr, 3), round(likeness.ssim, 3), likeness.flat_mse
    (0.01, 20.0, 0.01, 0.0)
    """

    mse: float
    psnr: float
    ssim: float
    flat_mse: float

    @property
    def psnr_or_none(self) -> float | None:
        """PSNR, or None where it is infinite, which JSON cannot represent."""
        return self.psnr if self.mse else None

    @classmethod
    def of(cls, picture: Tensor, reconstruction: Tensor) -> Likeness:
        """Compares two images of shape (1, channels, height, width)."""
        if picture.shape != reconstruction.shape or picture.ndim != 4:
            raise UsageError(
                "picture and reconstruction must have the same shape (1, channels, height, width), "
                f"got {(*picture.shape,)} and {(*reconstruction.shape,)}."
            )
        first, second = picture.double(), reconstruction.double()
        mse = float((first - second).square().mean())
        flat = float((first - first.mean(dim=(2, 3), keepdim=True)).square().mean())
        return cls(mse, -10 * log10(mse) if mse else inf, structural_similarity(first, second), flat)


def structural_similarity(first: Tensor, second: Tensor) -> float:
    """SSIM of Wang et al. (2004): Gaussian window of 11 pixels with standard deviation 1.5, without padding.

    Images smaller than 11 pixels get the largest odd window that fits.

    >>> structural_similarity(torch.rand(1, 1, 12, 12), torch.rand(1, 1, 12, 12)) < 0.9
    True
    """
    channels, *size = first.shape[1:]
    width = min(_WINDOW, *((side - 1) // 2 * 2 + 1 for side in size))
    places = torch.arange(width, dtype=torch.float64) - width // 2
    line = torch.exp(-places.square() / (2 * _SIGMA**2))
    window = (line[:, None] * line / line.sum() ** 2).expand(channels, 1, -1, -1)

    def local(values: Tensor) -> Tensor:
        return F.conv2d(values, window, groups=channels)

    x, y = first.double(), second.double()
    mean_x, mean_y = local(x), local(y)
    variance_x, variance_y = local(x * x) - mean_x**2, local(y * y) - mean_y**2
    covariance = local(x * y) - mean_x * mean_y
    numerator = (2 * mean_x * mean_y + _C1) * (2 * covariance + _C2)
    return float((numerator / ((mean_x**2 + mean_y**2 + _C1) * (variance_x + variance_y + _C2))).mean())
