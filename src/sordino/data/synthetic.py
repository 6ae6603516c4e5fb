"""Synthetic datasets: dead-leaves images, and the two-patch distribution.

Pictures made by a program: leaves that fall on one another. Nobody is in them, so looking at them costs nothing.

Dead leaves (Matheron 1968) have edges, occlusions and objects of all sizes, as photographs do. Each picture follows a
law of its own: the form of its leaves, how they lie, how large they are, their colours and their grain. A network that
is to name the law from the picture has to see edges, directions, frequencies and colours.

Letters: `b` picture, `c` channel, `m`, `n` rows and columns.

A synthetic distribution with features of known strength: what noise does to each group can be computed.

A row has two patches, in random order: the feature of its class and group, and Gaussian noise. Each class has a
majority and a minority feature; all four are orthogonal, and a minority's is weaker. Nothing here is anybody's data.
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
_LARGEST = 1.0  # the radius of a leaf, where a picture reaches from -1 to 1
_BEYOND = 1.2  # how far out the middle of a leaf may lie


@dataclass(frozen=True)
class DeadLeavesBatch:
    """Pictures as bytes [b, c, m, n], the number of each one's form in `FORMS`, and the other numbers of its law."""

    pictures: Tensor = field(repr=False)
    forms: Tensor = field(repr=False)
    numbers: Tensor = field(repr=False)


@dataclass(frozen=True)
class DeadLeaves:
    """Draws pictures of this shape (channels, rows, columns), `leaves` of them in each.

    >>> drawn = DeadLeaves((3, 32, 32)).draw(5, Generator().manual_seed(0))
    >>> drawn.pictures.shape, drawn.pictures.dtype, drawn.numbers.shape
    (torch.Size([5, 3, 32, 32]), torch.uint8, torch.Size([5, 12]))
    """

    input_shape: tuple[int, ...]
    leaves: int = 40

    def __post_init__(self) -> None:
        validate.axes(3, input_shape=self.input_shape)
        if self.input_shape[0] not in (1, 3):
            raise UsageError(f"pictures have 1 or 3 channels, rows and columns, got the shape {self.input_shape}.")
        validate.count(leaves=self.leaves)

    @property
    def causes(self) -> int:
        """How many numbers a law has beside its form."""
        return 9 + self.input_shape[0]

    def draw(self, count: int, generator: Generator) -> DeadLeavesBatch:
        """So many pictures with their laws. The same generator gives the same ones."""
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
    """What all leaves of a picture have in common. One value for each picture; `colour` is [b, c]."""

    form: Tensor
    angle: Tensor
    aspect: Tensor
    smallest: Tensor
    grain: Tensor  # how strong, 0 for smooth leaves
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
        """One more leaf for each picture: where it lies [b, m, n], and what it looks like [b, c, m, n]."""
        count, channels = self.colour.shape
        uniform, normal = torch.rand(4, count, generator=generator), torch.randn(3, count, generator=generator)
        down = places[0] - _flat(_BEYOND * (2 * uniform[0] - 1))
        right = places[1] - _flat(_BEYOND * (2 * uniform[1] - 1))
        along, across = _turned(down, right, self.angle + 0.4 * normal[0])
        # Radii with density r^-3: then every scale covers as much of a picture as any other.
        radius = (self.smallest**-2 + (_LARGEST**-2 - self.smallest**-2) * uniform[2]) ** -0.5
        power, aspect = _flat(_POWERS[self.form]), self.aspect.sqrt()
        u, v = along.abs() / _flat(radius * aspect), across.abs() / _flat(radius / aspect)
        wave, _ = _turned(down, right, self.grain_angle)
        grain = _flat(self.grain) * torch.sin(_flat(self.frequency) * wave + _flat(2 * math.pi * uniform[3]))
        shade = 0.15 * (_flat(normal[1]) * right + _flat(normal[2]) * down)
        colour = self.colour + self.spread[:, None] * torch.randn(count, channels, generator=generator)
        return u**power + v**power < 1, colour[:, :, None, None] + (grain + shade)[:, None]

    def numbers(self) -> Tensor:
        """What a network is to tell from a picture, each number about as large as the others: [b, 9 + c].

        A direction is that of a line, the same after half a turn. Grain that is not there has none.
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
    """The middles of `size` pixels between -1 and 1."""
    return (torch.arange(size) + 0.5) * (2 / size) - 1


def _flat(values: Tensor) -> Tensor:
    """[b, 1, 1]"""
    return values[:, None, None]


def _turned(down: Tensor, right: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    cosine, sine = _flat(angle.cos()), _flat(angle.sin())
    return cosine * right + sine * down, cosine * down - sine * right


@dataclass(frozen=True)
class TwoPatch:
    """The distribution. Norms are per class; `minority_share` is the chance that a row is of its class's minority.

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
            raise UsageError("majority_norms and minority_norms must be two norms each, one per class.")
        for place, (strong, weak) in enumerate(zip(self.majority_norms, self.minority_norms, strict=True)):
            validate.positive(**{f"majority_norms[{place}]": strong, f"minority_norms[{place}]": weak})
            if weak > strong:
                raise UsageError("a minority norm must be at most its class's majority norm, got a larger one.")

    def features(self) -> Tensor:
        """The features (class, group, dimension), group 0 being the majority, along the first four axes of space."""
        norms = torch.tensor([self.majority_norms, self.minority_norms]).T.flatten()
        return (norms[:, None] * torch.eye(4, self.dimension)).reshape(2, 2, self.dimension)

    def draw(self, seed: int) -> DataSet:
        """Rows for training and for testing. The same seed gives the same rows."""
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
