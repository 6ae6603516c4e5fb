"""Means and standard deviations of private inputs, released with noise and charged to the budget.

A row of inputs x in a public range, scaled to [-1, 1], adds (1, mean of x, mean of x^2) to a sum, with means over the
positions of each of `c` channels. Each of the 2c + 1 values is at most 1, so the vector of a row has L2 norm at most
sqrt(2c + 1). The rows of a unit are summed and clipped to that norm as a whole, which keeps their ratios: a unit with
many rows counts about as much as one with a single row.

Guarantee: replacing one unit by nothing moves the sum by at most `bound` = sqrt(2c + 1) in L2. With normal noise of
`noise_multiplier` * bound on each value this is one Gaussian mechanism (Dwork and Roth 2014, theorem A.1), and it is
charged before a row is read. The number of rows is one of the noisy values, so everything else is post-processing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.records import Batch, Records
from sordino.kernel.states import BoundedSum, Dense, Layout, Private

_ROWS_AT_A_TIME = 1024


@dataclass(frozen=True)
class Moments:
    """Released mean and standard deviation of each channel (or column), in the units of the inputs."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def release_moments(
    budget: Budget,
    *,
    noise_multiplier: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    seed: int | None = None,
    key: Key | None = None,
) -> Moments:
    """Releases means and standard deviations of the inputs of `budget`, whose public range must be declared.

    With a `seed` the result is reproducible, and whoever knows the seed can remove the noise.

    >>> from sordino.kernel.records import as_records
    >>> data = (torch.arange(1000.0)[:, None] / 1000, torch.zeros(1000))
    >>> budget = Budget(as_records(data, input_range=(0.0, 1.0)))
    >>> moments = release_moments(budget, noise_multiplier=5.0, seed=0)
    >>> abs(moments.mean[0] - 0.5) < 0.05, abs(moments.std[0] - 0.29) < 0.05, budget.releases
    (True, True, ('moments of the inputs',))
    """
    if seed is not None and key is not None:
        raise UsageError("seed and key exclude each other: a seed makes the noise reproducible, a key keeps it secret.")
    key = key or (Key.fresh() if seed is None else Key.from_seed(seed))
    validate.instance(Budget, budget=budget)
    validate.instance(Key, key=key)
    noise, scale = Gaussian(noise_multiplier), _Scale.of(budget.records)
    private = budget.release(
        "moments of the inputs",
        noise=noise,
        adjacency=adjacency,
        key=key,
        total_of=lambda: _bounded_sum(budget.records, scale),
    )
    return scale.moments(private, noise.std(scale.bound))


@dataclass(frozen=True)
class _Scale:
    """Public scaling of inputs: number of channels, and center and half width of the range."""

    channels: int
    middle: float
    half: float

    @classmethod
    def of(cls, records: Records) -> _Scale:
        *inputs, _ = records.rows.empty()
        if records.input_range is None:
            raise UsageError(
                "moments of private inputs need a public range: declare input_range with the data, got none."
            )
        if len(inputs) != 1 or not (inputs[0].is_floating_point() or inputs[0].dtype == torch.uint8):
            dtypes = ", ".join(str(x.dtype) for x in inputs)
            raise UsageError(f"moments need one input tensor, floating-point or uint8, got {dtypes}.")
        low, high = records.input_range
        return cls(prod(inputs[0].shape[1:2]), low / 2 + high / 2, high / 2 - low / 2)

    @property
    def layout(self) -> Layout:
        return Layout(("number", "mean", "square"), ((1,), (self.channels,), (self.channels,)))

    @property
    def bound(self) -> float:
        """Largest L2 norm of the contribution of one unit."""
        return sqrt(self.layout.size)

    def rows(self, batch: Batch) -> Tensor:
        """Contribution of each row, float64, shape (rows, 1 + 2 * channels). Invalid rows contribute zeros."""
        scaled = (batch.inputs[0].to(torch.float64) - self.middle) / self.half
        places = scaled.reshape(len(batch.valid), self.channels, -1)
        ones = torch.ones(len(places), 1, dtype=torch.float64, device=places.device)
        rows = torch.cat([ones, places.mean(dim=2), places.square().mean(dim=2)], dim=1)
        return torch.where(batch.valid[:, None], rows, 0.0)

    def moments(self, private: Private, noise_std: float) -> Moments:
        parts = private.tensors()
        number = max(1.0, float(parts["number"]))
        mean = (parts["mean"] / number).clamp(-1, 1)
        variance = (parts["square"] / number).clamp(0, 1) - mean.square()
        smallest = min(1.0, noise_std / number)  # a smaller variance cannot be told from noise
        std = variance.clamp(min=smallest).sqrt()
        return Moments(tuple((self.middle + self.half * mean).tolist()), tuple((self.half * std).tolist()))


def _bounded_sum(records: Records, scale: _Scale) -> BoundedSum:
    layout, clip = scale.layout, ClipByNorm(scale.bound)
    units = torch.split(torch.arange(records.num_units), max(1, _ROWS_AT_A_TIME // records.rows_per_unit))
    total = BoundedSum.of_nobody(clip.bound, layout)
    for indices in units:
        batch = records.gather(indices)
        rows = scale.rows(batch)
        total += clip(Dense(rows.new_zeros(batch.num_units, layout.size).index_add_(0, batch.units, rows), layout))
    return total
