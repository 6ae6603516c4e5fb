"""Synthetic datasets: dead-leaves images, and the two-patch distribution. They contain no private data.

Dead leaves (Matheron 1968): overlapping shapes, with edges, occlusions and objects of all sizes, as in photographs.
Each image has its own law, that is, its own distribution of the form, direction, size, color and grain of its leaves. A
network that predicts the law from the image has to learn features for edges, directions, frequencies and colors. Index
letters: `b` image, `c` channel, `m`, `n` rows and columns.

Two-patch: features of known strength, so that the effect of noise on each group can be computed. A row has two patches
in random order: the feature of its class and group, and Gaussian noise. Each class has a majority and a minority
feature. All four are orthogonal, and minority features have smaller norms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from sordino._input import validate
from sordino.data.dataset import DataSet, Facts, Split
from sordino.errors import UsageError

FORMS = ("star", "diamond", "ellipse", "rectangle")
_POWERS = torch.tensor([0.7, 1.0, 2.0, 8.0])  # of |u|^p + |v|^p < 1
_LARGEST = 1.0  # largest radius of a leaf; an image reaches from -1 to 1
_BEYOND = 1.2  # largest coordinate of the center of a leaf


@dataclass(frozen=True)
class DeadLeavesBatch:
    """Images as uint8 [b, c, m, n], the index of their form in `FORMS` [b], and the other parameters of their laws."""

    pictures: Tensor = field(repr=False)
    forms: Tensor = field(repr=False)
    numbers: Tensor = field(repr=False)


@dataclass(frozen=True)
class DeadLeaves:
    """Draws images of shape (channels, rows, columns), each with `leaves` leaves.

    >>> drawn = DeadLeaves((3, 32, 32)).draw(5, Generator().manual_seed(0))
    >>> drawn.pictures.shape, drawn.pictures.dtype, drawn.numbers.shape
    (torch.Size([5, 3, 32, 32]), torch.uint8, torch.Size([5, 12]))
    """

    input_shape: tuple[int, ...]
    leaves: int = 40

    def __post_init__(self) -> None:
        validate.axes(3, input_shape=self.input_shape)
        if self.input_shape[0] not in (1, 3):
            raise UsageError(
                f"input_shape must be channels (1 or 3), rows and columns of an image, got {self.input_shape}."
            )
        validate.count(leaves=self.leaves)

    @property
    def causes(self) -> int:
        """Number of parameters of a law besides the form."""
        return 9 + self.input_shape[0]

    def draw(self, count: int, generator: Generator) -> DeadLeavesBatch:
        """Draws `count` images and their laws. They are determined by the state of the generator."""
        validate.count(count=count)
        channels, rows, columns = self.input_shape
        law = _Law.random(count, channels, generator)
        places = _places(rows)[:, None], _places(columns)[None, :]
        pictures = law.colour[:, :, None, None].expand(-1, -1, rows, columns)
        for _ in range(self.leaves):
            covered, painted = law.leaf(places, generator)
            pictures = torch.where(covered[:, None], painted, pictures)
        quantised = pictures.clamp(0, 1).mul(255).round().to(torch.uint8)
        return DeadLeavesBatch(quantised, law.form, law.numbers())


@dataclass(frozen=True)
class _Law:
    """Parameters that all leaves of an image share. One value for each image; `colour` is [b, c]."""

    form: Tensor
    angle: Tensor
    aspect: Tensor
    smallest: Tensor
    grain: Tensor  # amplitude, 0 for smooth leaves
    frequency: Tensor
    grain_angle: Tensor
    colour: Tensor
    spread: Tensor

    @classmethod
    def random(cls, count: int, channels: int, generator: Generator) -> _Law:
        uniform = torch.rand(8, count, generator=generator)
        return cls(
            form=torch.randint(len(FORMS), (count,), generator=generator),
            angle=math.pi * uniform[0],
            aspect=1 + 2 * uniform[1],
            smallest=0.1 * 6.0 ** uniform[2],
            grain=torch.where(uniform[3] < 0.3, 0.0, 0.3 * uniform[4]),
            frequency=2 * 10.0 ** uniform[5],
            grain_angle=math.pi * uniform[6],
            colour=torch.rand(count, channels, generator=generator),
            spread=0.05 + 0.35 * uniform[7],
        )

    def leaf(self, places: tuple[Tensor, Tensor], generator: Generator) -> tuple[Tensor, Tensor]:
        """Draws one leaf for each image: the pixels that it covers [b, m, n], and their values [b, c, m, n]."""
        count, channels = self.colour.shape
        uniform, normal = torch.rand(4, count, generator=generator), torch.randn(3, count, generator=generator)
        down = places[0] - _flat(_BEYOND * (2 * uniform[0] - 1))
        right = places[1] - _flat(_BEYOND * (2 * uniform[1] - 1))
        along, across = _turned(down, right, self.angle + 0.4 * normal[0])
        # Radii have density r^-3, so that leaves of every scale cover the same area of an image.
        radius = (self.smallest**-2 + (_LARGEST**-2 - self.smallest**-2) * uniform[2]) ** -0.5
        power, aspect = _flat(_POWERS[self.form]), self.aspect.sqrt()
        u, v = along.abs() / _flat(radius * aspect), across.abs() / _flat(radius / aspect)
        wave, _ = _turned(down, right, self.grain_angle)
        grain = _flat(self.grain) * torch.sin(_flat(self.frequency) * wave + _flat(2 * math.pi * uniform[3]))
        shade = 0.15 * (_flat(normal[1]) * right + _flat(normal[2]) * down)
        colour = self.colour + self.spread[:, None] * torch.randn(count, channels, generator=generator)
        return u**power + v**power < 1, colour[:, :, None, None] + (grain + shade)[:, None]

    def numbers(self) -> Tensor:
        """Regression targets for a network, all on about the same scale: [b, 9 + c].

        Directions are encoded with double angles, because a line turned by 180 degrees is the same line. Smooth leaves
        have frequency and direction 0.
        """
        has_grain = (self.grain > 0).float()
        return torch.stack(
            [
                torch.cos(2 * self.angle),
                torch.sin(2 * self.angle),
                2 * self.aspect - 4,
                2 * self.smallest.log() + 2.8,
                8 * self.grain - 0.8,
                (self.frequency.log() - 1.8) * has_grain,
                torch.cos(2 * self.grain_angle) * has_grain,
                torch.sin(2 * self.grain_angle) * has_grain,
                10 * self.spread - 2,
                *(3.4 * self.colour.T - 1.7),
            ],
            dim=1,
        )


def _places(size: int) -> Tensor:
    """Centers of `size` pixels between -1 and 1."""
    return (torch.arange(size) + 0.5) * (2 / size) - 1


def _flat(values: Tensor) -> Tensor:
    """Adds two axes: [b] to [b, 1, 1]."""
    return values[:, None, None]


def _turned(down: Tensor, right: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = _flat(angle.cos()), _flat(angle.sin())
    return cosine * right + sine * down, cosine * down - sine * right


@dataclass(frozen=True)
class TwoPatch:
    """The two-patch distribution. Norms are per class; `minority_share` is the probability of the minority group.

    >>> drawn = TwoPatch(num_train=6, num_test=4, dimension=8).draw(seed=0)
    >>> drawn.train.inputs.shape, sorted(drawn.train.groups)
    (torch.Size([6, 2, 8]), ['minority'])
    """

    num_train: int = 1000
    num_test: int = 1000
    dimension: int = 400
    noise_std: float = 0.2
    majority_norms: tuple[float, float] = (1.0, 0.8)
    minority_norms: tuple[float, float] = (0.5, 0.4)
    minority_share: float = 0.2

    def __post_init__(self) -> None:
        validate.count(num_train=self.num_train, num_test=self.num_test)
        validate.count(at_least=4, dimension=self.dimension)  # four orthogonal features need as many directions
        validate.between(0.0, 1e6, noise_std=self.noise_std)
        validate.between(0.0, 1.0, minority_share=self.minority_share)
        validate.instance((tuple, list), majority_norms=self.majority_norms, minority_norms=self.minority_norms)
        if not len(self.majority_norms) == len(self.minority_norms) == 2:
            raise UsageError("majority_norms and minority_norms must be two norms each, one for each class.")
        for place, (strong, weak) in enumerate(zip(self.majority_norms, self.minority_norms, strict=True)):
            validate.positive(**{f"majority_norms[{place}]": strong, f"minority_norms[{place}]": weak})
            if weak > strong:
                raise UsageError("minority_norms must be at most the majority_norms of their class, got a larger one.")

    def features(self) -> Tensor:
        """Features (class, group, dimension), along the first four axes. Group 0 is the majority."""
        norms = torch.tensor([self.majority_norms, self.minority_norms]).T.flatten()
        return (norms[:, None] * torch.eye(4, self.dimension)).reshape(2, 2, self.dimension)

    def draw(self, seed: int) -> DataSet:
        """Draws training and test rows, which are determined by the seed."""
        validate.count(at_least=0, at_most=2**63 - 1, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        train, test = self._rows(self.num_train, generator), self._rows(self.num_test, generator)
        return DataSet(Facts("two-patch", (2, self.dimension), 2), train, test)

    def _rows(self, number: int, generator: torch.Generator) -> Split:
        target = torch.randint(2, (number,), generator=generator)
        minority = (torch.rand(number, generator=generator) < self.minority_share).to(torch.int64)
        place = torch.randint(2, (number,), generator=generator)
        inputs = self.noise_std * torch.randn(number, 2, self.dimension, generator=generator)
        inputs[torch.arange(number), place] = self.features()[target, minority]
        return Split(inputs, target, groups={"minority": minority})
