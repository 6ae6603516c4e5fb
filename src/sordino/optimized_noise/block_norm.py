"""Block-norm noise: the log-density decreases by a rate per block times the L2 norm of the noise in that block.

Theorem: if V is Gamma distributed with shape (d + 1) / 2 and N is a standard normal vector in d dimensions, sqrt(2 V) N
has the density proportional to exp(-||z||), because the integral of v^(-1/2) exp(-v - ||z||^2 / 4v) is proportional to
exp(-||z||). So, given one Gamma variable per block, the noise is normal, and sums with it are rounded exactly, as with
Gaussian noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import log, pi, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.randomness import NORMAL_ERROR, Stream, enclosures
from sordino.optimized_noise.costs import AbsoluteCost, Cost, SquaredCost

_SMALLEST_ROOT = 2.0**-8  # below it (once in 10^7 draws) the cube root of Gamma is too imprecise in float64
_SMALLEST_WORD = np.uint64(2**40)


@dataclass(frozen=True, eq=False)
class BlockNorm:
    """The density proportional to exp(-sum_b rates[b] ||z_b||_2), where z_b are the coordinates of block b.

    Blocks of one coordinate give independent Laplace variables; a single block gives the isotropic K-norm mechanism.

    Guarantee: log-densities of z and z + D differ by at most `lipschitz` times ||D||_2 (Cauchy-Schwarz).

    >>> from sordino.kernel.randomness import Key
    >>> noise = BlockNorm(torch.tensor([0, 0, 1]), torch.tensor([3.0, 4.0], dtype=torch.float64))
    >>> noise.lipschitz
    5.0
    >>> noise.sample(Key.from_seed(0).stream("noise"), step=0).shape
    torch.Size([3])
    """

    block_of: Tensor = field(repr=False)
    rates: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        validate.instance(Tensor, block_of=self.block_of, rates=self.rates)
        if self.block_of.dtype != torch.int64 or self.block_of.dim() != 1 or self.block_of.numel() == 0:
            raise UsageError(f"block_of must be a vector of int64, got {_described(self.block_of)}.")
        if self.rates.dtype != torch.float64 or self.rates.dim() != 1:
            raise UsageError(f"rates must be a vector of float64, got {_described(self.rates)}.")
        if not bool((self.rates.isfinite() & (self.rates > 0)).all()):
            raise UsageError("rates must be finite and above 0, got others.")
        lowest, highest = int(self.block_of.min()), int(self.block_of.max())
        if lowest < 0 or highest >= len(self.rates) or not self._sizes.all():
            raise UsageError(
                f"block_of must contain each index from 0 to {len(self.rates) - 1}, one per rate, "
                f"got {lowest} to {highest}."
            )

    @property
    def dimension(self) -> int:
        return self.block_of.numel()

    @property
    def lipschitz(self) -> float:
        """The Lipschitz constant of the log-density with respect to the L2 norm."""
        return float(self.rates.norm())

    def expected(self, cost: Cost) -> Tensor:
        """The expected cost of each coordinate for a weight of 1."""
        return torch.from_numpy(cost.moment(self._sizes) / self._rates**cost.power)[self.block_of.cpu()]

    def expected_absolute(self) -> Tensor:
        """E |z_i| of each coordinate."""
        return self.expected(AbsoluteCost())

    def expected_square(self) -> Tensor:
        """E z_i^2 of each coordinate."""
        return self.expected(SquaredCost())

    def expected_cost(self, weights: Tensor, cost: Cost) -> float:
        """The expected cost of the noise with these weights."""
        return float(weights.to("cpu", torch.float64) @ self.expected(cost))

    def expected_norm(self) -> float:
        """The root mean square of the L2 norm of the noise."""
        return sqrt(float((self._sizes * (self._sizes + 1.0) / self._rates**2).sum()))

    def log_density(self, z: Tensor) -> Tensor:
        """The log-density at z, or at each row of z."""
        d = self._sizes
        # The area of the unit sphere times Gamma(d) is the integral of exp(-||z||) over d dimensions.
        integrals = log(2) + d / 2 * log(pi) - gammaln(d / 2) + gammaln(d)
        z = z.to(self.rates)
        squares = z.new_zeros(*z.shape[:-1], len(d)).index_add_(-1, self.block_of.to(z.device), z.square())
        return float((d * np.log(self._rates) - integrals).sum()) - squares.sqrt() @ self.rates

    def scales(self, stream: Stream, *, step: int) -> BlockScales:
        """Draws standard deviations such that normal noise with these has the density."""
        gammas = Gammas.draw((self._sizes + 1.0) / 2, stream.named("radius"), step=step)
        return BlockScales(gammas, self._rates, self.block_of.cpu().numpy())

    def sample(self, stream: Stream, *, step: int, device: torch.device | str = "cpu") -> Tensor:
        """Draws noise in float64 precision, for inspection. Releases use the exact rounding of `rounded_sum`."""
        normals = stream.normals(self.dimension, step=step)
        return torch.from_numpy(normals * self.scales(stream, step=step).of(slice(None))).to(device)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.block_of.cpu().numpy(), minlength=len(self.rates))

    @property
    def _rates(self) -> NDArray[np.float64]:
        return np.asarray(self.rates.cpu().numpy())


@dataclass(frozen=True, eq=False)
class BlockScales:
    """Standard deviations of the coordinates, sqrt(2 V) / rate for the Gamma variable V of the block."""

    gammas: Gammas = field(repr=False)
    rates: NDArray[np.float64] = field(repr=False)
    block_of: NDArray[np.int64] = field(repr=False)

    def of(self, part: slice) -> NDArray[np.float64]:
        return np.asarray((np.sqrt(2 * self.gammas.values) / self.rates)[self.block_of[part]])

    def error(self, part: slice) -> NDArray[np.float64]:
        return np.asarray(self.gammas.errors[self.block_of[part]])

    def interval(self, index: int, further: int) -> Any:
        block = int(self.block_of[index])
        twice = 2 * self.gammas.interval(block, further)
        return twice.ctx.sqrt(twice) / float(self.rates[block])


@dataclass(frozen=True, eq=False)
class Gammas:
    """Gamma variables of scale one, drawn exactly by the rejection method of Marsaglia and Tsang (2000).

    A normal X and a uniform U give the proposal d (1 + c X)^3 with d = shape - 1/3 and c = 1 / sqrt(9 d). It is
    accepted if log U < X^2 / 2 + d - d v + d log v for v = (1 + c X)^3 > 0; about one proposal in twenty is rejected.
    Comparisons that float64 cannot decide are decided by interval arithmetic, so the distribution is exact.
    """

    values: NDArray[np.float64]
    errors: NDArray[np.float64]  # bounds of the relative error of the square root of each value
    shapes: NDArray[np.float64]
    accepted: NDArray[np.int64]  # the number of the accepted proposal
    places: NDArray[np.int64]  # the index among the normals of that proposal
    stream: Stream = field(repr=False)
    step: int

    @classmethod
    def draw(cls, shapes: NDArray[np.float64], stream: Stream, *, step: int) -> Gammas:
        count = len(shapes)
        accepted, places = np.zeros((2, count), np.int64)
        gammas = cls(np.empty(count), np.empty(count), shapes, accepted, places, stream, step)
        pending, proposal = np.arange(count), 0
        while len(pending):
            pending = pending[~gammas._propose(pending, proposal)]
            proposal += 1
        return gammas

    def interval(self, index: int, further: int) -> Any:
        """An interval that contains the exact value."""
        depth, cube = self._cube(index, int(self.accepted[index]), int(self.places[index]), further)
        return depth * cube

    def _propose(self, pending: NDArray[np.int64], proposal: int) -> NDArray[np.bool_]:
        """Makes one proposal for each pending variable, and returns which of them are accepted."""
        depth = self.shapes[pending] - 1 / 3
        x = self._normals(proposal).normals(len(pending), step=self.step)
        words = self._uniforms(proposal).words(len(pending), step=self.step)
        drawn_root = 1 + x / np.sqrt(9 * depth)
        root = np.maximum(drawn_root, _SMALLEST_ROOT)
        cube, log = root**3, 3 * np.log(root)
        surplus = x**2 / 2 + depth * (1 - cube + log) - np.log((words + 0.5) * 2.0**-64)
        # Error bound: X has error `NORMAL_ERROR`, which moves the root; U has relative error 2^-41; then rounding.
        slope = np.abs(x) + np.sqrt(depth) * np.abs(1 / root - root**2) + 1
        error = 2 * NORMAL_ERROR * slope + depth * (1 + cube + np.abs(log)) * 2.0**-48
        rejected = drawn_root < -2 * NORMAL_ERROR
        decided = rejected | ((np.abs(surplus) > error) & (drawn_root > _SMALLEST_ROOT) & (words > _SMALLEST_WORD))
        accepted = (surplus > 0) & ~rejected
        self.accepted[pending], self.places[pending] = proposal, np.arange(len(pending))
        self.values[pending] = depth * cube
        self.errors[pending] = NORMAL_ERROR / (np.sqrt(depth) * root) + 2.0**-48
        for place in np.flatnonzero(~decided).tolist():
            index = int(pending[place])
            accepted[place] = self._is_accepted(index, proposal, place)
            if accepted[place]:
                self.values[index], self.errors[index] = float(self.interval(index, 1).mid), 2.0**-48
        return np.asarray(accepted)

    def _is_accepted(self, index: int, proposal: int, place: int) -> bool:
        def surplus(further: int) -> Any:
            depth, cube = self._cube(index, proposal, place, further)
            x = self._normals(proposal).normal_interval(place, step=self.step, further=further)
            uniform = self._uniforms(proposal).uniform_interval(place, step=self.step, further=further)
            log = cube.ctx.log
            # A cube that is surely not above zero is rejected; if its sign is uncertain, the answer is too.
            if cube.b <= 0:
                return cube - 1
            return x**2 / 2 + depth * (1 - cube + log(cube)) - log(uniform) if cube.a > 0 else cube.ctx.mpf([-1, 1])

        return next(bool(interval.a > 0) for interval in enclosures(surplus) if interval.a > 0 or interval.b < 0)

    def _cube(self, index: int, proposal: int, place: int, further: int) -> tuple[Any, Any]:
        x = self._normals(proposal).normal_interval(place, step=self.step, further=further)
        depth = x.ctx.mpf(float(self.shapes[index])) - x.ctx.mpf(1) / 3
        return depth, (1 + x / x.ctx.sqrt(9 * depth)) ** 3

    def _normals(self, proposal: int) -> Stream:
        return self.stream.named(f"normals of proposal {proposal}")

    def _uniforms(self, proposal: int) -> Stream:
        return self.stream.named(f"uniforms of proposal {proposal}")


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
