"""Optimised noise as the noise of a plan: in every step the density that hurts least, for weights as they are then.

The slides' algorithm, with weights that are paid for: take them from their source, find the best block norm whose
log-density has the slope that the step may spend, draw from it, add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from dp_accounting.dp_event import DpEvent
from torch import Tensor

from sordino._input import validate
from sordino.accounting.events import PureDpEvent
from sordino.errors import UsageError
from sordino.kernel.lattice import rounded_sum, spacings_of
from sordino.kernel.noise import ROUNDED_EXACTLY, NoiseAt, check_multiplier
from sordino.kernel.states import BoundedSum, Layout, Private
from sordino.optimized_noise.block_norm import BlockNorm
from sordino.optimized_noise.costs import AbsoluteCost, Cost, SquaredCost
from sordino.optimized_noise.fits import best_blocks
from sordino.optimized_noise.sources import FromReleases, Look, Magnitudes, Source


class Fit(Protocol):
    """A family of noise: `best_blocks`, `weighted_laplace` or `isotropic`. It is named in the text of a plan."""

    @property
    def __name__(self) -> str: ...

    def __call__(self, weights: Tensor, lipschitz: float, cost: Cost, /) -> BlockNorm: ...


@dataclass(frozen=True)
class NoiseDensity:
    """The density of one step's noise, and the magnitudes that it was fitted to. Both are public."""

    density: BlockNorm
    used: Magnitudes = field(repr=False)


@dataclass(frozen=True, repr=False)
class OptimizedNoise:
    """Noise of the `fit` family that costs least with the weights of the step; one unit's whole bound is worth
    1 / `noise_multiplier`, with a delta of zero.

    Guarantee: the log-density of the noise has slope 1 / (`noise_multiplier` * bound) in L2 at most, whatever the fit
    returns, and weights come from public values and past releases. So one unit changes the log-likelihood of a step by
    at most 1 / `noise_multiplier`. The result is rounded exactly, each coordinate to a lattice that depends on its
    expected noise only, so it is post-processing of the mechanism over the real numbers (`sordino.kernel.lattice`).

    >>> OptimizedNoise(0.5).event
    PureDpEvent(noise_multiplier=0.5)
    >>> OptimizedNoise(0.5)
    OptimizedNoise(0.5, weights=FromReleases(memory=0.99), cost=AbsoluteCost(), fit=best_blocks)
    """

    noise_multiplier: float
    weights: Source = field(default_factory=FromReleases)
    cost: Cost = field(default_factory=AbsoluteCost)
    fit: Fit = best_blocks

    arithmetic: ClassVar[str] = ROUNDED_EXACTLY

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)
        validate.instance(Source, weights=self.weights)
        validate.instance((AbsoluteCost, SquaredCost), cost=self.cost)
        if not callable(self.fit) or not hasattr(self.fit, "__name__"):
            raise UsageError(
                f"fit must be best_blocks, weighted_laplace or isotropic, got {validate.described(self.fit)}."
            )

    def __repr__(self) -> str:
        settings = f"weights={self.weights!r}, cost={self.cost!r}, fit={self.fit.__name__}"
        return f"OptimizedNoise({self.noise_multiplier!r}, {settings})"

    @property
    def event(self) -> DpEvent:
        return PureDpEvent(self.noise_multiplier)

    def init(self, layout: Layout) -> Mapping[str, Tensor]:
        return self.weights.init(layout)

    def law(self, bound: float, at: NoiseAt) -> NoiseDensity:
        """The law of this step's noise on a sum of this bound."""
        used = self.weights.magnitudes(at.state, Look(at.step, at.stream.named("weights"), at.encode))
        steepest = 1 / (self.noise_multiplier * bound)
        density = self.fit(used.weights, steepest, self.cost)
        if not density.lipschitz <= steepest:
            raise UsageError(f"fit must give a slope of at most {steepest:.6g}, got {density.lipschitz:.6g}.")
        return NoiseDensity(density, used)

    def add(self, total: BoundedSum, at: NoiseAt) -> Private:
        released, _ = self.add_and_learn(total, at)
        return released

    def add_and_learn(self, total: BoundedSum, at: NoiseAt) -> tuple[Private, Mapping[str, Tensor]]:
        at = at if at.state else replace(at, state=self.init(total.layout))
        law = self.law(total.bound, at)
        if law.density.dimension != total.layout.size:
            raise UsageError(f"weights must be {total.layout.size}, one per coordinate, got {law.density.dimension}.")
        squares = law.density.expected_square()
        scales, spacings = law.density.scales(at.stream, step=at.step), spacings_of(squares.sqrt().numpy())
        value = rounded_sum(total.value, scales, spacings, stream=at.stream, step=at.step)
        released = Private(value, total.layout, noise_square=squares.to(total.value.device))
        return released, self.weights.update(at.state, law.used, released)

    def expected_norm(self, bound: float, at: NoiseAt) -> float:
        return self.law(bound, at).density.expected_norm()

    def with_multiplier(self, noise_multiplier: float) -> OptimizedNoise:
        return replace(self, noise_multiplier=noise_multiplier)

    def tail_risk(self, sensitivity: float, steps: int) -> float:
        return 0.0  # the noise has no end: bits are drawn for as long as the tail goes on
