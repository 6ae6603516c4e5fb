"""Gradient embedding perturbation: noise on a few coordinates of a public subspace, and on what lies outside of it.

Embedding and residual are two releases of one batch with noise sigma * C0 and sigma * C1. Divided by their clip norms
they are one vector of two blocks, each clipped to 1, to which each unit adds at most sqrt(2): the plan's clip is
`ClipPerLayer((1.0, 1.0))`, noise reads that bound, and the event counts both. There is nothing else to account for:
whatever clip a plan has, its bound is that of the vector that is released.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings.codecs import Transformed
from sordino.encodings.subspace import Basis, Subspace
from sordino.kernel.encoding import State, check_coordinates
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private


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

    def encode(self, each: PerExample) -> Transformed:
        check_coordinates("a subspace", self.basis.layout.size, each.layout)
        return Transformed(each, self.layout, self.rows)

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

    def encode(self, each: PerExample) -> Transformed:
        check_coordinates("a subspace", self.basis.layout.size, each.layout)
        return Transformed(each, self.layout, self.rows)

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
