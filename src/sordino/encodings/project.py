"""Gradient embedding perturbation: projection of gradients to a public subspace.

The subspace in which gradients of public rows lie: an anchor for private ones.

Yu, Zhang, Chen and Liu, "Do not let privacy overbill utility: gradient embedding perturbation for private learning"
(ICLR 2021). Index letters: `m` a public row, `d` a coordinate of the model, `k` a direction of the subspace.

Gradient embedding perturbation: noise on a few coordinates of a public subspace, and on what lies outside of it.

Embedding and residual are two releases of one batch with noise sigma * C0 and sigma * C1. Divided by their clip norms
they are one vector of two blocks, each clipped to 1, to which each unit adds at most sqrt(2): the plan's clip is
`ClipPerLayer((1.0, 1.0))`, noise reads that bound, and the event counts both. There is nothing else to account for:
whatever clip a plan has, its bound is that of the vector that is released.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import sqrt

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings.codecs import MappedContributions
from sordino.kernel.encoding import Anchors, GradientRows, State, check_coordinates
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private

_ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions, group by group: coordinates `cuts[i]` of the model have directions `parts[i]`."""

    parts: tuple[Tensor, ...]
    cuts: tuple[slice, ...]
    layout: Layout

    @property
    def directions(self) -> int:
        return sum(part.shape[1] for part in self.parts)

    def embed(self, rows: Tensor) -> Tensor:
        """Rows of gradients, shape (b, d), as coordinates in the subspace, shape (b, k)."""
        embedded = [rows[..., cut] @ part.to(rows) for part, cut in zip(self.parts, self.cuts, strict=True)]
        return torch.cat(embedded, dim=-1)

    def lift(self, embedded: Tensor) -> Tensor:
        """From the subspace back into the space of all coordinates."""
        codes = torch.split(embedded, [part.shape[1] for part in self.parts], dim=-1)
        return torch.cat([code @ part.to(code).T for code, part in zip(codes, self.parts, strict=True)], dim=-1)

    def lift_squares(self, squares: float | Tensor) -> Tensor:
        """The mean squares of what is lifted, where that of each direction is given and directions are independent."""
        embedded = torch.as_tensor(squares, dtype=torch.float64).expand(self.directions)
        return Basis(tuple(part.square() for part in self.parts), self.cuts, self.layout).lift(embedded)


@dataclass(frozen=True)
class Subspace:
    """Spanned by the leading directions of `anchors`: gradients of public or synthetic rows, never of private ones.

    The coordinates are cut into `groups` of equal size, which share `directions` in proportion to the roots of their
    sizes. A basis is found by power iteration from random directions of the coding stream, one pass over the rows each,
    and no more than some of them are held at a time.

    >>> from sordino.kernel.randomness import Key
    >>> from sordino.kernel.states import Dense
    >>> public = Dense(torch.tensor([[3.0, 0.0, 0.0], [-2.0, 0.0, 0.0]]), Layout(("w",), ((3,),)))
    >>> basis = Subspace(lambda step, randomness: public, directions=1, groups=1).basis(0, Key.from_seed(0).stream("a"))
    >>> basis.lift(basis.embed(torch.tensor([5.0, 1.0, 1.0]))).round()
    tensor([5., 0., 0.])
    """

    anchors: Anchors = field(repr=False)
    directions: int
    groups: int = 3
    power_iterations: int = 1

    def __post_init__(self) -> None:
        validate.count(groups=self.groups, power_iterations=self.power_iterations)
        validate.count(at_least=self.groups, directions=self.directions)

    def basis(self, step: int, randomness: Stream) -> Basis:
        """The subspace of this step. A function of public rows, released parameters, and the stream at this step."""
        each = self.anchors(step, randomness.named("anchors"))  # which may draw from the address of the directions
        validate.count(at_least=self.groups, at_most=each.layout.size, directions=self.directions)
        cuts = self._cuts(each.layout.size)
        shapes = [(cut.stop - cut.start, number) for cut, number in zip(cuts, self._numbers(cuts), strict=True)]
        drawn = randomness.named("directions").normals(sum(d * k for d, k in shapes), step=step)
        starts = torch.split(torch.from_numpy(drawn).float(), [d * k for d, k in shapes])
        parts = [_orthonormal(start.reshape(shape)) for start, shape in zip(starts, shapes, strict=True)]
        for _ in range(self.power_iterations):
            parts = [_orthonormal(part) for part in _multiplied(each, parts, cuts)]
        return Basis(tuple(parts), cuts, each.layout)

    def _cuts(self, size: int) -> tuple[slice, ...]:
        ends = [size * group // self.groups for group in range(self.groups + 1)]
        return tuple(slice(start, stop) for start, stop in pairwise(ends))

    def _numbers(self, cuts: tuple[slice, ...]) -> list[int]:
        roots = [sqrt(cut.stop - cut.start) for cut in cuts]
        ends = [round(self.directions * end / sum(roots)) for end in accumulate(roots, initial=0.0)]
        return [
            min(stop - start, cut.stop - cut.start) for (start, stop), cut in zip(pairwise(ends), cuts, strict=True)
        ]


def _multiplied(each: GradientRows, parts: list[Tensor], cuts: tuple[slice, ...]) -> list[Tensor]:
    """sum over rows of g g^T L for each group, in one pass."""
    products = [torch.zeros_like(part) for part in parts]
    for rows in each.rows(_ROWS_AT_A_TIME):
        for product, part, cut in zip(products, parts, cuts, strict=True):
            group = rows[:, cut].to(part)
            product.addmm_(group.T, group @ part)
    return products


def _orthonormal(directions: Tensor) -> Tensor:
    """Where public gradients span fewer directions than asked for, the others are arbitrary, and harmless."""
    basis: Tensor = torch.linalg.qr(directions).Q
    return basis


@dataclass(frozen=True)
class Project:
    """The coordinates of each gradient in a public subspace, and the rest: clipped to these norms, each on its own.

    Use it with `ClipPerLayer((1.0, 1.0))`: what is clipped are the two parts in units of their norms.

    >>> from sordino.kernel.states import Dense
    >>> layout = Layout(("w",), ((3,),))
    >>> public = Dense(torch.tensor([[1.0, 0.0, 0.0]]), layout)
    >>> project = Project(Subspace(lambda step, randomness: public, directions=1, groups=1))
    >>> codec = project.codec(project.init(layout), 0, Stream(bytes(32)))
    >>> [row] = codec.encode(Dense(torch.tensor([[10.0, 0.0, 4.0]]), layout)).rows(1)
    >>> row.abs().round()
    tensor([[2., 0., 0., 2.]])
    """

    subspace: Subspace
    embedding_norm: float = 5.0
    residual_norm: float = 2.0

    def __post_init__(self) -> None:
        validate.instance(Subspace, subspace=self.subspace)
        validate.positive(embedding_norm=self.embedding_norm, residual_norm=self.residual_norm)

    def init(self, layout: Layout) -> State:
        return {}

    def codec(self, state: State, step: int, randomness: Stream) -> ResidualCodec:
        return ResidualCodec(self.subspace.basis(step, randomness), self.embedding_norm, self.residual_norm)


@dataclass(frozen=True)
class ProjectBiased:
    """The coordinates in the subspace alone. Less noise, and what lies outside of it is never learnt.

    Its clip is that of one vector, `ClipByNorm(norm)`.
    """

    subspace: Subspace

    def __post_init__(self) -> None:
        validate.instance(Subspace, subspace=self.subspace)

    def init(self, layout: Layout) -> State:
        return {}

    def codec(self, state: State, step: int, randomness: Stream) -> EmbeddingCodec:
        return EmbeddingCodec(self.subspace.basis(step, randomness))


@dataclass(frozen=True, repr=False)
class EmbeddingCodec:
    """Coordinates in the subspace, and back."""

    basis: Basis

    @property
    def layout(self) -> Layout:
        return Layout(("embedding",), ((self.basis.directions,),))

    def encode(self, each: PerExample) -> MappedContributions:
        check_coordinates("a subspace", self.basis.layout.size, each.layout)
        return MappedContributions(each, self.layout, self.rows)

    def rows(self, rows: Tensor) -> Tensor:
        return self.basis.embed(rows)

    def decode(self, released: Private) -> tuple[Private, State]:
        noise_square = self.basis.lift_squares(released.noise_square)
        return released.lift(self.basis.lift, self.basis.layout, noise_square=noise_square), {}


@dataclass(frozen=True, repr=False)
class ResidualCodec:
    """Coordinates in the subspace and the rest, each in units of its clip norm, and back."""

    basis: Basis
    embedding_norm: float
    residual_norm: float

    @property
    def layout(self) -> Layout:
        return Layout(("embedding", "residual"), ((self.basis.directions,), (self.basis.layout.size,)))

    def encode(self, each: PerExample) -> MappedContributions:
        check_coordinates("a subspace", self.basis.layout.size, each.layout)
        return MappedContributions(each, self.layout, self.rows)

    def rows(self, rows: Tensor) -> Tensor:
        embedded = self.basis.embed(rows)
        residual = rows - self.basis.lift(embedded)
        return torch.cat([embedded / self.embedding_norm, residual / self.residual_norm], dim=1)

    def decode(self, released: Private) -> tuple[Private, State]:
        noise = torch.as_tensor(released.noise_square).expand(released.value.shape)
        inside, outside = torch.split(noise, list(self.layout.sizes))
        noise_square = self.basis.lift_squares(inside * self.embedding_norm**2) + outside * self.residual_norm**2
        return released.lift(self._added, self.basis.layout, noise_square=noise_square), {}

    def _added(self, value: Tensor) -> Tensor:
        embedded, residual = torch.split(value, list(self.layout.sizes))
        return self.basis.lift(embedded * self.embedding_norm) + residual * self.residual_norm
