"""Image datasets with a public change, such as padding or rotation, applied to each image."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino._input import validate
from sordino.data import DataSet, Facts, load
from sordino.models.features import Pixels
from sordino_papers.harness.rows import ExperimentRows, prepared_rows
from sordino_papers.harness.training import DpSgdTrial

_ROWS_AT_A_TIME = 2000


class ImageChange(Protocol):
    """A change of images in [0, 1], shape (image, channel, row, column), that keeps their shape."""

    def __call__(self, pictures: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Padding:
    """Pads each side with this many black pixels and resizes to the original size: the object gets smaller.

    >>> Padding(14)(torch.ones(1, 1, 28, 28))[0, 0, 14, [0, 4, 9, 14]]
    tensor([0., 0., 1., 1.])
    """

    kind: ClassVar[str] = "padding"
    pixels: int

    def __post_init__(self) -> None:
        validate.count(at_least=0, pixels=self.pixels)

    def __call__(self, pictures: Tensor) -> Tensor:
        if not self.pixels:
            return pictures
        size = pictures.shape[-2:]
        padded = F.pad(pictures, (self.pixels,) * 4)
        return F.interpolate(padded, size=size, mode="bilinear", antialias=True).clamp(0.0, 1.0)

    def percent(self, size: int) -> int:
        """Fraction of the side that is padding, in percent, rounded like in the paper.

        >>> [Padding(pixels).percent(28) for pixels in (0, 5, 14, 23, 42)]
        [0, 26, 50, 62, 75]
        """
        return round(100 * 2 * self.pixels / (size + 2 * self.pixels))


@dataclass(frozen=True)
class Rotation:
    """Rotates counterclockwise about the center, with black corners.

    >>> picture = torch.tensor([[[[1.0, 0.0], [0.0, 0.0]]]])
    >>> Rotation(90.0)(picture).round().tolist()
    [[[[0.0, 0.0], [1.0, 0.0]]]]
    """

    kind: ClassVar[str] = "rotation"
    degrees: float

    def __call__(self, pictures: Tensor) -> Tensor:
        if not self.degrees:
            return pictures
        angle = torch.deg2rad(torch.tensor(self.degrees))
        cos, sin = float(angle.cos()), float(angle.sin())
        turn = torch.tensor([[cos, -sin, 0.0], [sin, cos, 0.0]]).expand(len(pictures), 2, 3)
        places = F.affine_grid(turn, list(pictures.shape), align_corners=False)
        return F.grid_sample(pictures, places, align_corners=False).clamp(0.0, 1.0)


@dataclass(frozen=True)
class ImageSet:
    """A standard dataset of changed images, or its first `examples` rows.

    With `left_out`, the last private rows are not trained on and replace the test rows.
    """

    kind: ClassVar[str] = "changed-images"
    set_name: str
    change: ImageChange = field(default_factory=lambda: Padding(0))
    examples: int | None = None
    left_out: int = 0

    @property
    def data(self) -> str:
        return f"{self.set_name}, left-out rows" if self.left_out else self.set_name

    def rows(self, trial: DpSgdTrial) -> ExperimentRows:
        return _rows(self)

    def chosen(self) -> DataSet:
        """The raw dataset: rows to train on, and rows to measure on."""
        return load(self.set_name)


@lru_cache(maxsize=1)  # entries that follow one another share their rows
def _rows(pictures: ImageSet) -> ExperimentRows:
    loaded = pictures.chosen()
    scale, normalise = Pixels(loaded.facts.input_range), normaliser(loaded.facts)

    def prepare(raw: Tensor) -> Tensor:
        parts = torch.split(raw, _ROWS_AT_A_TIME)
        return torch.cat([normalise(pictures.change(scale(part))) for part in parts])

    return prepared_rows(loaded, prepare, examples=pictures.examples, left_out=pictures.left_out)


def normaliser(facts: Facts) -> Pixels:
    """Converts images in [0, 1] to inputs of networks, with the public constants of a dataset."""
    return Pixels(None, facts.mean, facts.std)


def as_images(inputs: Tensor, facts: Facts) -> Tensor:
    """Converts inputs of networks back to images in [0, 1].

    >>> facts = Facts("grey", (1, 1, 2), 2, mean=(0.5,), std=(0.25,))
    >>> as_images(normaliser(facts)(torch.tensor([[[[0.0, 0.75]]]])), facts)
    tensor([[[[0.0000, 0.7500]]]])
    """
    mean, std = (torch.tensor(x).reshape(1, -1, 1, 1) for x in (facts.mean or (0.0,), facts.std or (1.0,)))
    return (inputs * std + mean).clamp(0.0, 1.0)
