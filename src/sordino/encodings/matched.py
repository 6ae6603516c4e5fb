"""Matched scales: a scale per coordinate before the clip, undone after Gaussian noise.

A scale per coordinate before the clip, undone after Gaussian noise: noise shaped by a clip that is shaped alike.

With b a public scale, g / b is clipped to the plan's norm and gets the same noise in every coordinate, so the event is
the one without it. Multiplied by b again, noise is b_i sigma C in coordinate i. Among scales that leave the mean square
of g / b as it is, sum_i w_i E|noise_i|^p is smallest where b_i is proportional to (v_i / w_i)^(1 / (p + 2)): v_i is the
mean square of the gradient in coordinate i, w_i what noise costs there, and p the power of the cost.

The clip has to be matched. Under a clip to a ball, one unit may lie along the coordinate with the least noise, so that
noise of standard deviations s_i is worth min_i s_i, and isotropic noise at that is smaller everywhere else.

A matched scale whose magnitudes are bought in every step: absolute values are released beside the gradient.

With u = g / b the vector (u, share |u|) / sqrt(1 + share^2) has the norm of u. It is what is clipped and gets noise, so
the bound, the noise and the event count both halves, and there is nothing else to account for. The price is that noise
on the gradient grows by sqrt(1 + share^2). Absolute values and not squares, because the squares of a vector spread over
d coordinates are shorter than itself by about sqrt(d), and noise would hide them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from math import sqrt

import torch
from torch import Tensor

from sordino._input import validate
from sordino.encodings.codecs import Learn, MappedContributions
from sordino.kernel.encoding import State, check_coordinates
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private
from sordino.optimized_noise.costs import AbsoluteCost, Cost, SquaredCost, usable_weights
from sordino.optimized_noise.sources import Look, Magnitudes, RunningMeans, Source, or_flat


@dataclass(frozen=True)
class Matched:
    """Divides gradients by a scale that suits their `source` and the cost, and multiplies what is released by it.

    Weights and squares below a millionth of the largest are raised to that (`usable_weights`), so that no scale is
    zero. With `Unweighted` sources and `SquaredCost` this is AdaCliP without its mean.

    Guarantee: a scale is a function of releases and public values, and acts on each unit alone. The clip bounds what is
    released, so the plan's event is the one without an encoding.

    >>> import torch
    >>> from sordino.optimized_noise.sources import Fixed
    >>> matched, layout = Matched(Fixed(torch.tensor([8.0, 1.0]))), Layout(("w",), ((2,),))
    >>> codec = matched.codec(matched.init(layout), 0, Stream(bytes(32)))
    >>> codec.scale
    tensor([1.0228, 0.5114], dtype=torch.float64)
    """

    source: Source
    cost: Cost = field(default_factory=AbsoluteCost)

    def __post_init__(self) -> None:
        validate.instance(Source, source=self.source)
        validate.instance((AbsoluteCost, SquaredCost), cost=self.cost)

    def init(self, layout: Layout) -> State:
        return self.source.init(layout)

    def codec(self, state: State, step: int, randomness: Stream) -> ScaleCodec:
        used = self.source.magnitudes(state, Look(step, randomness, encode=lambda each: each))
        return ScaleCodec(matched_scale(used, self.cost), learn=partial(self.source.update, state, used))


def matched_scale(sizes: Magnitudes, cost: Cost) -> Tensor:
    """b_i proportional to (v_i / w_i)^(1 / (p + 2)), with sum v_i / b_i^2 = sum v_i: a clip norm keeps its meaning.

    >>> import torch
    >>> matched_scale(Magnitudes(torch.ones(2), torch.ones(2)), AbsoluteCost())
    tensor([1., 1.], dtype=torch.float64)
    """
    weights, squares = usable_weights(sizes.weights).values, usable_weights(sizes.squares).values
    shape = (squares / weights) ** (1 / (cost.power + 2))
    return shape * ((squares / shape.square()).sum() / squares.sum()).sqrt()


@dataclass(frozen=True, repr=False)
class ScaleCodec:
    """Divides by `scale`, shape (d,), and multiplies by it. It learns from the gradient in its own units."""

    scale: Tensor
    learn: Learn

    def encode(self, each: PerExample) -> MappedContributions:
        check_coordinates("a scale", self.scale.numel(), each.layout)
        return MappedContributions(each, each.layout, self.scaled)

    def scaled(self, rows: Tensor) -> Tensor:
        return rows / self.scale.to(rows)

    def decode(self, released: Private) -> tuple[Private, State]:
        scale = self.scale.to(released.value.device)
        noise_square = released.noise_square * scale.square()
        gradient = released.lift(lambda value: value * scale, noise_square=noise_square)
        return gradient, self.learn(gradient)


_SIZE_OF = "size of "


@dataclass(frozen=True)
class MatchedBought:
    """`Matched` by running means of |g|, as released beside the gradient at `share` of its size.

    It doubles the coordinates, so it comes last in `Combined`, and its clip is that of one vector, `ClipByNorm`. What
    lies below one standard deviation of the noise in a mean is raised to it, and squares are those of the means.

    >>> bought, layout = MatchedBought(share=0.75), Layout(("w",), ((2,),))
    >>> codec = bought.codec(bought.init(layout), 0, Stream(bytes(32)))
    >>> from sordino.kernel.states import Dense
    >>> [row] = codec.encode(Dense(torch.tensor([[5.0, -10.0]]), layout)).rows(1)
    >>> row
    tensor([[ 4., -8.,  3.,  6.]])
    """

    share: float = 0.25
    memory: float = 0.95
    cost: Cost = field(default_factory=AbsoluteCost)

    def __post_init__(self) -> None:
        validate.positive(share=self.share)
        validate.instance((AbsoluteCost, SquaredCost), cost=self.cost)
        RunningMeans(self.memory)

    def init(self, layout: Layout) -> State:
        return RunningMeans(self.memory).init(layout)

    def codec(self, state: State, step: int, randomness: Stream) -> BesideCodec:
        def learn(sizes: Private) -> State:
            return RunningMeans(self.memory).added(state, sizes.value, sizes.noise_square)

        return BesideCodec(matched_scale(self._magnitudes(state), self.cost), self.share, learn)

    def _magnitudes(self, state: State) -> Magnitudes:
        means = RunningMeans(self.memory).read(state)
        if means is None:
            return Magnitudes(torch.ones_like(state["sum"]), torch.ones_like(state["sum"]))
        sizes = or_flat(means.value.maximum((means.noise / means.releases).sqrt()))
        return Magnitudes(sizes, sizes.square())


@dataclass(frozen=True, repr=False)
class BesideCodec:
    """Divides by `scale`, puts absolute values beside, and takes both apart again. It learns from the sizes alone."""

    scale: Tensor
    share: float
    learn: Learn

    @property
    def shrink(self) -> float:
        """What keeps the norm as it is."""
        return 1 / sqrt(1 + self.share**2)

    def encode(self, each: PerExample) -> MappedContributions:
        layout = each.layout
        check_coordinates("a scale", self.scale.numel(), layout)
        names = layout.names + tuple(_SIZE_OF + name for name in layout.names)
        return MappedContributions(each, Layout(names, 2 * layout.shapes), self.rows)

    def rows(self, rows: Tensor) -> Tensor:
        scaled = rows / (self.scale / self.shrink).to(rows)
        return torch.cat([scaled, self.share * scaled.abs()], dim=1)

    def decode(self, released: Private) -> tuple[Private, State]:
        half = len(released.layout.names) // 2
        layout = Layout(released.layout.names[:half], released.layout.shapes[:half])
        scale = self.scale.to(released.value.device) / self.shrink
        noise = torch.as_tensor(released.noise_square, device=scale.device).expand(2 * layout.size)
        noise, of_sizes = torch.split(noise, [layout.size] * 2)
        beside = scale / self.share
        gradient = released.lift(lambda x: x[: layout.size] * scale, layout, noise_square=noise * scale.square())
        sizes = released.lift(lambda x: x[layout.size :] * beside, layout, noise_square=of_sizes * beside.square())
        return gradient, self.learn(sizes)
