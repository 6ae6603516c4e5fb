"""Noise whose log-density falls by a rate per block times the length of the noise in that block."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import log, pi, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor

from sordino import validate
from sordino.errors import UsageError
from sordino.optimized.costs import AbsoluteCost, Cost, SquaredCost
from sordino.randomness import Stream

_SMALLEST_NORMAL = np.float64(2.0**-60)  # in place of a normal that was rounded to zero, which has no direction


@dataclass(frozen=True, eq=False)
class BlockNorm:
    """The density proportional to exp(-sum_b rates[b] ||z_b||_2), where z_b are the coordinates of block b.

    Blocks of one coordinate are independent Laplace variables; one block is the isotropic K-norm mechanism.

    Guarantee: log-densities of z and z + D differ by at most `lipschitz` times ||D||_2, by Cauchy and Schwarz.

    >>> from sordino.randomness import Key
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
            raise UsageError("rates must be finite numbers above 0, got others.")
        lowest, highest = int(self.block_of.min()), int(self.block_of.max())
        if lowest < 0 or highest >= len(self.rates) or not self._sizes.all():
            raise UsageError(f"block_of must name each of {len(self.rates)} blocks, got {lowest} to {highest}.")

    @property
    def dimension(self) -> int:
        return self.block_of.numel()

    @property
    def lipschitz(self) -> float:
        """By how much the log-density changes per unit of L2 distance, at most."""
        return float(self.rates.norm())

    def expected(self, cost: Cost) -> Tensor:
        """What each coordinate costs per weight."""
        return torch.from_numpy(cost.moment(self._sizes) / self._rates**cost.power)[self.block_of.cpu()]

    def expected_absolute(self) -> Tensor:
        """E |z_i| of each coordinate."""
        return self.expected(AbsoluteCost())

    def expected_square(self) -> Tensor:
        """E z_i^2 of each coordinate."""
        return self.expected(SquaredCost())

    def expected_cost(self, weights: Tensor, cost: Cost) -> float:
        """The expected cost of this noise with these weights."""
        return float(weights.to("cpu", torch.float64) @ self.expected(cost))

    def expected_norm(self) -> float:
        """The L2 norm to expect of the noise, as the root of its mean square."""
        return sqrt(float((self._sizes * (self._sizes + 1.0) / self._rates**2).sum()))

    def log_density(self, z: Tensor) -> Tensor:
        """The logarithm of the density at z, or at each row of it."""
        d = self._sizes
        # The area of the unit sphere times Gamma(d) is the integral of exp(-||z||) over d dimensions.
        integrals = log(2) + d / 2 * log(pi) - gammaln(d / 2) + gammaln(d)
        z = z.to(self.rates)
        squares = z.new_zeros(*z.shape[:-1], len(d)).index_add_(-1, self.block_of.to(z.device), z.square())
        return float((d * np.log(self._rates) - integrals).sum()) - squares.sqrt() @ self.rates

    def sample(self, stream: Stream, *, step: int, device: torch.device | str = "cpu") -> Tensor:
        """One draw: in each block a radius, which is a sum of exponentials, times a uniform direction.

        Guarantee: it is a function of (stream, step), whatever the number of threads. An exponential ends at
        `LARGEST_EXPONENTIAL`, and a block's radius no earlier than at that over its rate. Radii are float64; directions
        have the 24 bits of the normals, so a release is to be rounded as one with Gaussian noise is.
        """
        block_of = self.block_of.cpu().numpy()
        exponentials = stream.named("radius").exponentials(self.dimension, step=step)
        normals = stream.named("direction").normals(self.dimension, step=step).astype(np.float64)
        normals[normals == 0] = _SMALLEST_NORMAL
        radii = np.bincount(block_of, exponentials) / self._rates
        lengths = np.sqrt(np.bincount(block_of, np.square(normals)))
        normals *= (radii / lengths)[block_of]
        return torch.from_numpy(normals).to(device)

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        return np.bincount(self.block_of.cpu().numpy(), minlength=len(self.rates))

    @property
    def _rates(self) -> NDArray[np.float64]:
        return np.asarray(self.rates.cpu().numpy())


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
