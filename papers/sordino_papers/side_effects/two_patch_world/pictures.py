"""The feature-to-noise ratio of real pictures: the object is the feature, what lies around it is not.

Xu and Chen (2026), section 6.2, pad pictures and shrink them back, so that the object gets smaller and its ratio falls.
How they would measure a ratio is not said. Ours: the length of the part of a picture that lies in the object's box,
taken from the background, over the standard deviation of the noise on a gradient's coordinate. A weight has noise of
one size whatever the pixel that it belongs to, so that pixels outside the box have as much noise and nothing to say.

Pictures are looked at as they are. Pass rows that are declared public, such as test rows of a standard set.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError


@dataclass(frozen=True)
class ObjectBox:
    """Rows `top` to `top + height` and columns `left` to `left + width` of a picture."""

    top: int
    left: int
    height: int
    width: int

    @classmethod
    def after_padding(cls, size: int, ratio: float) -> ObjectBox:
        """Where a square picture lies once `ratio` of its side is padding, in halves, and it is `size` pixels again.

        >>> ObjectBox.after_padding(28, 0.5)
        ObjectBox(top=7, left=7, height=14, width=14)
        """
        validate.between(0, 1, high_open=True, ratio=ratio)
        margin = round(size * ratio / 2)
        return cls(margin, margin, size - 2 * margin, size - 2 * margin)


@dataclass(frozen=True)
class ImageRatio:
    """The mean length of what is in the box, the share of a picture's energy that this is, and the ratio to noise."""

    feature_norm: float
    share_of_energy: float
    feature_to_noise: float


def feature_to_noise_of_pictures(
    pictures: Tensor, box: ObjectBox, *, noise_std: float, background: float = 0.0
) -> ImageRatio:
    """Of public pictures, shape (picture, channel, row, column), with their objects in one box.

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
    """The smallest box around the pixels of each picture that differ from the background. An empty one has no box.

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
