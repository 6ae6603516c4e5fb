"""Gradient embedding perturbation: noise on a few coordinates of a public subspace, and on what lies outside of it.

Embedding and residual are two releases of one batch with noise sigma * C0 and sigma * C1. Divided by their clip norms
they are one vector of two blocks, each clipped to 1, to which each unit adds at most sqrt(2): the plan's clip is
`ClipPerLayer((1.0, 1.0))`, noise reads that bound, and the event counts both. There is nothing else to account for:
whatever clip a plan has, its bound is that of the vector that is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.encoding import State
from sordino.encodings.subspace import Basis, Subspace
from sordino.randomness import Stream
from sordino.states import Dense, Layout, PerExample, Private, WeightsOf, by_block

_ROWS_AT_A_TIME = 32


@dataclass(frozen=True)
class Project:
    """The coordinates of each gradient in a public subspace, and the rest: clipped to these norms, each on its own.

    Use it with `ClipPerLayer((1.0, 1.0))`: what is clipped are the two parts in units of their norms.

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

    def update(self, state: State, private: Private) -> State:
        return state


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

    def update(self, state: State, private: Private) -> State:
        return state


@dataclass(frozen=True, repr=False)
class EmbeddingCodec:
    """Coordinates in the subspace, and back."""

    basis: Basis

    @property
    def layout(self) -> Layout:
        return Layout(("embedding",), ((self.basis.directions,),))

    def encode(self, each: PerExample) -> Transformed:
        return Transformed(each, self)

    def rows(self, rows: Tensor) -> Tensor:
        return self.basis.embed(rows)

    def decode(self, private: Private) -> Private:
        return Private(self.basis.lift(private.value), self.basis.layout)


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
        return Transformed(each, self)

    def rows(self, rows: Tensor) -> Tensor:
        embedded = self.basis.embed(rows)
        residual = rows - self.basis.lift(embedded)
        return torch.cat([embedded / self.embedding_norm, residual / self.residual_norm], dim=1)

    def decode(self, private: Private) -> Private:
        embedded, residual = torch.split(private.value, list(self.layout.sizes))
        value = self.basis.lift(embedded * self.embedding_norm) + residual * self.residual_norm
        return Private(value, self.basis.layout)


@dataclass(frozen=True, repr=False)
class Transformed:
    """Contributions of which each row is mapped on its own, a few at a time. Norms are those of the rows as formed.

    The residual's norm would follow from two others by Pythagoras, and be wrong where they nearly cancel: the clip
    would rest on it.
    """

    each: PerExample
    codec: EmbeddingCodec | ResidualCodec

    @property
    def layout(self) -> Layout:
        return self.codec.layout

    def squared_norms(self) -> Tensor:
        return torch.cat([part.squared_norms() for part in self._parts()])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total, done = torch.zeros(self.layout.size, dtype=torch.float64), 0
        for part in self._parts():
            total += part.weighted_sum(weights[done : done + len(part.matrix)])
            done += len(part.matrix)
        return total

    def sum_weighted_by(self, weights_of: WeightsOf) -> tuple[Tensor, Tensor]:
        total, weights = torch.zeros(self.layout.size, dtype=torch.float64), []
        for part in self._parts():
            added, given = part.sum_weighted_by(weights_of)
            total += added
            weights.append(by_block(given, self.layout))
        return total, torch.cat(weights)

    def masked(self, keep: Tensor) -> Dense:
        return Dense(torch.cat(list(self.rows(_ROWS_AT_A_TIME))), self.layout).masked(keep)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        for rows in self.each.rows(chunk):
            yield self.codec.rows(rows)

    def _parts(self) -> Iterator[Dense]:
        for rows in self.rows(_ROWS_AT_A_TIME):
            yield Dense(rows, self.layout)
