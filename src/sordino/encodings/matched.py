"""A scale per coordinate before the clip, undone after Gaussian noise: noise shaped by a clip that is shaped alike.

With b a public scale, g / b is clipped to the plan's norm and gets the same noise in every coordinate, so the event is
the one without it. Multiplied by b again, noise is b_i sigma C in coordinate i. Among scales that leave the mean square
of g / b as it is, sum_i w_i E|noise_i|^p is smallest where b_i is proportional to (v_i / w_i)^(1 / (p + 2)): v_i is the
mean square of the gradient in coordinate i, w_i what noise costs there, and p the power of the cost.

The clip has to be matched. Under a clip to a ball, one unit may lie along the coordinate with the least noise, so that
noise of standard deviations s_i is worth min_i s_i, and isotropic noise at that is smaller everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from sordino._input import validate
from sordino.encodings.codecs import Learn, Transformed
from sordino.kernel.encoding import State, check_coordinates
from sordino.kernel.randomness import Stream
from sordino.kernel.states import Layout, PerExample, Private
from sordino.optimized_noise.costs import AbsoluteCost, Cost, SquaredCost
from sordino.optimized_noise.sources import Look, Magnitudes, Source
from sordino.optimized_noise.weights import usable_weights


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

    def encode(self, each: PerExample) -> Transformed:
        check_coordinates("a scale", self.scale.numel(), each.layout)
        return Transformed(each, each.layout, self.scaled)

    def scaled(self, rows: Tensor) -> Tensor:
        return rows / self.scale.to(rows)

    def decode(self, released: Private) -> tuple[Private, State]:
        scale = self.scale.to(released.value.device)
        noise_square = released.noise_square * scale.square()
        gradient = released.lift(lambda value: value * scale, noise_square=noise_square)
        return gradient, self.learn(gradient)
