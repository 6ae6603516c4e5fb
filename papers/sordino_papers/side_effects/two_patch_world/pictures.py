"""Feature-to-noise ratio of real images: the object is the feature, the background is not.

Xu and Chen (2026), section 6.2, pad images and shrink them back, so that the object gets smaller and its ratio falls.
They do not define how to measure the ratio. Ours is the norm of the part of an image inside the object's box, minus the
background, over the standard deviation of the noise on a gradient coordinate. Weights of pixels outside the box get the
same noise but no signal.

Images are used as they are: pass rows that are declared public, such as test rows of a standard dataset.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError


@dataclass(frozen=True)
class ObjectBox:
    """Rows `top` to `top + height` and columns `left` to `left + width` of an image."""

    top: int
    left: int
    height: int
    width: int

    @classmethod
    def after_padding(cls, size: int, ratio: float) -> ObjectBox:
        """Position of a square image after `ratio` of its side became padding and it was resized to `size` pixels.

        >>> ObjectBox.after_padding(28, 0.5)
        ObjectBox(top=7, left=7, height=14, width=14)
        """
        validate.between(0, 1, high_open=True, ratio=ratio)
        margin = round(size * ratio / 2)
        return cls(margin, margin, size - 2 * margin, size - 2 * margin)


@dataclass(frozen=True)
class ImageRatio:
    """Mean norm of the content of the box, its fraction of the energy of the image, and its ratio to the noise."""

    feature_norm: float
    share_of_energy: float
    feature_to_noise: float


def feature_to_noise_of_pictures(
    pictures: Tensor, box: ObjectBox, *, noise_std: float, background: float = 0.0
) -> ImageRatio:
    """The ratio of public images, shape (image, channel, row, column), with their objects in one box.

    >>> import torch
    >>> pictures = torch.zeros(5, 1, 8, 8)
    >>> pictures[:, :, 2:6, 2:6] = 1.0
    >>> feature_to_noise_of_pictures(pictures, ObjectBox.after_padding(8, 0.5), noise_std=0.1)
    ImageRatio(feature_norm=4.0, share_of_energy=1.0, feature_to_noise=40.0)
    """
    validate.positive(noise_std=noise_std)
    if pictures.ndim != 4 or not len(pictures):
        raise UsageError(f"pictures must be of shape (picture, channel, row, column), got {tuple(pictures.shape)}.")
    foreground = pictures.double() - background
    inside = foreground[:, :, box.top : box.top + box.height, box.left : box.left + box.width]
    energy, all_energy = (x.square().sum(dim=(1, 2, 3)) for x in (inside, foreground))
    norm = float(energy.sqrt().mean())
    share = float(energy.sum() / all_energy.sum()) if float(all_energy.sum()) else 0.0
    return ImageRatio(round(norm, 9), share, norm / noise_std)


def object_boxes(pictures: Tensor, *, background: float = 0.0, differs_by: float = 0.1) -> list[ObjectBox]:
    """Smallest box around the pixels of each image that differ from the background. Empty images have no box.

    >>> import torch
    >>> picture = torch.zeros(1, 1, 8, 8)
    >>> picture[0, 0, 3, 2:5] = 1.0
    >>> object_boxes(picture)
    [ObjectBox(top=3, left=2, height=1, width=3)]
    """
    found = []
    for differs in ((pictures - background).abs() > differs_by).any(dim=1):
        rows, columns = (differs.any(dim=axis).nonzero()[:, 0] for axis in (1, 0))
        if len(rows):
            top, left = int(rows[0]), int(columns[0])
            found.append(ObjectBox(top, left, int(rows[-1]) - top + 1, int(columns[-1]) - left + 1))
    return found
