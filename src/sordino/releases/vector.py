"""`release`: adds to a vector of known sensitivity the noise with the smallest expected cost.

Guarantee: the caller is responsible for `sensitivity`, the largest L2 distance between the vectors of two neighboring
datasets. Before noise is added, coordinates are clamped to a range that depends on the noise alone. Clamping increases
no distance, and it keeps values small enough that noise is not lost in their rounding. With the pure families the
release is epsilon-differentially private (`OptimizedNoise`). If a delta is given and Gaussian noise costs less, the
release is that of `Gaussian`. The choice depends on dimension, weights, epsilon and delta, and not on the vector.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from dp_accounting.dp_event import GaussianDpEvent
from numpy.typing import NDArray
from torch import Tensor

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Adjacency, Guarantee, PureDpEvent, Unit, smallest
from sordino.errors import UsageError
from sordino.kernel.budget import Address, Budget, Release
from sordino.kernel.calibration import check_target
from sordino.kernel.lattice import spacing_of
from sordino.kernel.noise import ROUNDED_EXACTLY, Gaussian, Noise, check_tail
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout
from sordino.optimized_noise.block_norm import BlockNorm
from sordino.optimized_noise.costs import AbsoluteCost, Cost, SquaredCost, usable_weights
from sordino.optimized_noise.fits import best_blocks
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed

_SENSITIVITY = "the sensitivity of the vector is as declared by the caller and is not checked"
_EXACT_MULTIPLES = 2.0**52  # multiples of the lattice's spacing up to here are exact in float64

Vector = Tensor | NDArray[np.floating] | Sequence[float]


@dataclass(frozen=True)
class Released:
    """A private vector, the expected cost of its noise, and its guarantee.

    `expected_size` is E|noise| of each coordinate. `floored` is the number of weights that were raised because they
    were too small.
    """

    value: Tensor
    noise: str
    expected_size: Tensor = field(repr=False)
    expected_cost: float
    floored: int
    guarantee: Guarantee = field(repr=False)


def release(
    vector: Vector,
    sensitivity: float,
    epsilon: float,
    *,
    delta: float = 0.0,
    weights: Vector | None = None,
    cost: Cost | None = None,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    unit: Unit = Unit.EXAMPLE,
    budget: Budget | None = None,
    seed: int | None = None,
) -> Released:
    """Releases a vector with the noise of smallest expected cost. `sensitivity` is its L2 sensitivity.

    `weights` are the public costs of noise by coordinate (equal by default). `cost` is the expected cost to minimize
    (`AbsoluteCost`, E sum w|z|, by default). With a `delta` above 0 Gaussian noise is a candidate too. Values that are
    not finite count as zero. A `budget` is charged before noise is drawn. A `seed` makes the result reproducible, for
    tests: without a budget, two releases with one seed have the same noise, and their difference has none.

    >>> counts = [120.0, 80.0, 3.0]  # numbers of people, of whom each is in one count
    >>> released = release(counts, sensitivity=1.0, epsilon=1.0, weights=[1.0, 1.0, 10.0], seed=0)
    >>> released.noise, round(released.expected_cost, 1)
    ('2 blocks', 16.6)
    >>> released.guarantee.epsilon, released.guarantee.delta
    (1.0, 0.0)
    """
    cost = AbsoluteCost() if cost is None else cost
    validate.positive(sensitivity=sensitivity)
    validate.instance(Adjacency, adjacency=adjacency)
    validate.instance((AbsoluteCost, SquaredCost), cost=cost)
    validate.instance((Budget, type(None)), budget=budget)
    check_target(epsilon, delta, release=PureDpEvent(1.0))
    value = _numbers(vector)
    usable = usable_weights(torch.ones(len(value)) if weights is None else weights)
    if len(usable.values) != len(value):
        raise UsageError(f"weights must be {len(value)}, one per coordinate, got {len(usable.values)}.")
    chosen = _cheapest(usable.values, sensitivity, epsilon, delta, cost)
    noise = chosen.noise(adjacency)
    key = Key.fresh() if seed is None else Key.from_seed(seed)

    def total() -> BoundedSum:
        layout = Layout(("vector",), ((len(value),),))
        return BoundedSum.of_sensitivity(chosen.held(value), sensitivity / _moves(adjacency), layout)

    if budget is None:
        check_tail(noise, adjacency, steps=1, delta=delta)
        private = Release(noise, Address(0, key.of_release(0))).add(total())
    else:
        private = budget.release("vector", noise=noise, adjacency=adjacency, key=key, total_of=total, delta=delta)
    assumed = (_SENSITIVITY, ROUNDED_EXACTLY) if seed is None else (_SENSITIVITY, ROUNDED_EXACTLY, SEED_STAYS_SECRET)
    guarantee = Guarantee.of(noise.event, adjacency, delta=delta, unit=unit, assumptions=assumed)
    sizes = chosen.expected(AbsoluteCost()).to(value.device)
    return Released(private.value, chosen.name, sizes, chosen.expected_cost, usable.floored, guarantee)


def _numbers(vector: Vector) -> Tensor:
    """The vector as float64 on its device. The message has its shape, which is public, and no value."""
    value = vector.detach() if isinstance(vector, Tensor) else np.asarray(vector)
    shape, kind = tuple(value.shape), str(value.dtype)
    is_real = not value.is_complex() if isinstance(value, Tensor) else value.dtype.kind in "fiub"
    if len(shape) != 1 or shape[0] == 0 or not is_real:
        raise UsageError(f"vector must be one-dimensional, real and not empty, got {kind} of shape {shape}.")
    return torch.as_tensor(value).double()


@dataclass(frozen=True)
class _Candidate(ABC):
    """A candidate noise for a vector, before its adjacency is chosen."""

    weights: Tensor
    cost: Cost

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def expected(self, cost: Cost) -> Tensor:
        """Expected cost of each coordinate, per unit of weight."""

    @abstractmethod
    def noise(self, adjacency: Adjacency) -> Noise: ...

    @property
    def expected_cost(self) -> float:
        return float(self.weights @ self.expected(self.cost))

    def held(self, vector: Tensor) -> Tensor:
        """The vector, clamped to the range in which float64 represents every point of the lattice."""
        smallest_std = math.sqrt(float(self.expected(SquaredCost()).min()))
        largest = _EXACT_MULTIPLES * spacing_of(smallest_std)
        return torch.where(vector.isfinite(), vector, 0.0).clamp(-largest, largest)


@dataclass(frozen=True)
class _Pure(_Candidate):
    density: BlockNorm
    epsilon: float

    @property
    def name(self) -> str:
        blocks = len(self.density.rates)
        if blocks == self.density.dimension:
            return "weighted Laplace"
        return "isotropic L2" if blocks == 1 else f"{blocks} blocks"

    def expected(self, cost: Cost) -> Tensor:
        return self.density.expected(cost)

    def noise(self, adjacency: Adjacency) -> OptimizedNoise:
        moves = _moves(adjacency)
        multiplier = moves / self.epsilon
        if moves / multiplier > self.epsilon:  # by rounding
            multiplier = math.nextafter(multiplier, math.inf)
        return OptimizedNoise(multiplier, Fixed(self.weights), self.cost)


@dataclass(frozen=True)
class _Normal(_Candidate):
    multiplier: float
    std: float

    @property
    def name(self) -> str:
        return "Gaussian"

    def expected(self, cost: Cost) -> Tensor:
        moment = math.sqrt(2 / math.pi) if cost.power == 1 else 1.0
        return torch.full_like(self.weights, moment * self.std**cost.power)

    def noise(self, adjacency: Adjacency) -> Gaussian:
        return Gaussian(_moves(adjacency) * self.multiplier)


def _cheapest(weights: Tensor, sensitivity: float, epsilon: float, delta: float, cost: Cost) -> _Candidate:
    """The candidate of smallest expected cost. Block noise includes weighted Laplace and isotropic noise."""
    pure = _Pure(weights, cost, best_blocks(weights, epsilon / sensitivity, cost), epsilon)
    if not delta:
        return pure
    multiplier = smallest(GaussianDpEvent, Adjacency.ZERO_OUT, epsilon=epsilon, delta=delta)
    normal = _Normal(weights, cost, multiplier, multiplier * sensitivity)
    return min(pure, normal, key=lambda candidate: candidate.expected_cost)


def _moves(adjacency: Adjacency) -> float:
    """How many contributions change between neighbors: replacing a unit removes one and adds another."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
