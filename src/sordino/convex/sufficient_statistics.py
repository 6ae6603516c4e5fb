"""All that least squares needs of the data, released once: X^T X and X^T Y with normal noise.

A row with features x, |x| <= B, and the unit vector y of its label adds T = (x x^T, x y^T). Of the symmetric matrix the
upper triangle is released, off the diagonal times sqrt(2), which keeps inner products:
<T, T'> = (x.x')^2 + (x.x')(y.y').

Guarantee: replacing a row by nothing moves the sum by |T| <= sqrt(B^4 + B^2). Replacing it by another moves it by
|T - T'|, whose square is at most 2 (B^4 + B^2) - 2 (a^2 + a (y.y')) with a = x.x'. The last bracket is at least -1/4,
which it is for equal labels and a = -1/2, so |T - T'| <= sqrt(2) (B^2 + 1/2). Rows at such an angle exist unless the
constant feature is large: no smaller number is valid, and sqrt(2) sqrt(B^4 + B^2) is not. With noise on each number
this is one Gaussian mechanism, charged before a row is read. A user's rows are added up and scaled down as a whole; two
users are at most two norms apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, prod, sqrt

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting.dp_event import DpEvent, GaussianDpEvent
from numpy.typing import NDArray
from scipy.linalg.blas import dsyrk
from torch import Tensor

from sordino._input import validate
from sordino.accounting import Adjacency
from sordino.accounting.guarantee import Unit
from sordino.convex.random_features import FeatureMap, Features, at_most
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.noise import Gaussian
from sordino.kernel.randomness import Key
from sordino.kernel.records import Batch, Records
from sordino.kernel.states import BoundedSum, Layout, Private

MOST_FEATURES = 8_000  # whose products take 2.3 GB with their noise and eigenvectors
_ROWS_AT_A_TIME = 2048
_MOST_ROWS_PER_USER = 4096
_MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Statistics:
    """X^T X, shape (f, f) and symmetric, and X^T Y, shape (f, k), with noise. Public once made.

    Noise has the standard deviation `noise_std` on the diagonal and on X^T Y, and noise_std / sqrt(2) elsewhere.
    """

    gram: Tensor
    moment: Tensor
    noise_std: float


@dataclass(frozen=True)
class Summation:
    """What is summed: all that is public about X^T X and X^T Y, for the records of one budget."""

    features: Features
    input_shape: tuple[int, ...]
    num_classes: int
    unit: Unit

    @classmethod
    def of(cls, records: Records, features: Features, num_classes: int) -> Summation:
        """Refuses what cannot be summed, by the public structure of the records alone."""
        validate.instance(Features, features=features)
        validate.count(at_least=2, at_most=_MOST_CLASSES, num_classes=num_classes)
        *inputs, target = records.rows.empty()
        if len(inputs) != 1 or not (inputs[0].is_floating_point() or inputs[0].dtype == torch.uint8):
            raise UsageError(f"statistics need one tensor of numbers, got {', '.join(str(x.dtype) for x in inputs)}.")
        if target.is_floating_point() or target.ndim != 1:
            raise UsageError(f"targets must be one class number per row, got {target.dtype} of {target.ndim} axes.")
        if records.rows_per_unit > _MOST_ROWS_PER_USER:
            raise UsageError(f"rows_per_user must be at most {_MOST_ROWS_PER_USER}, got {records.rows_per_unit}.")
        shape = tuple(inputs[0].shape[1:])
        if (size := features.size(prod(shape))) > MOST_FEATURES:
            raise UsageError(
                f"a row must have at most {MOST_FEATURES} features, because all their products are held: got {size}."
            )
        return cls(features, shape, num_classes, records.unit)

    @property
    def size(self) -> int:
        return self.features.size(prod(self.input_shape))

    @property
    def bound(self) -> float:
        """The norm of what one unit adds, at most."""
        return hypot(self.features.bound**2, self.features.bound)

    def event(self, noise_multiplier: float, adjacency: Adjacency) -> DpEvent:
        """What the release is worth. Under replace-one a multiplier is relative to half of what a replacement moves."""
        if adjacency is not Adjacency.REPLACE_ONE or self.unit is Unit.USER:
            return GaussianDpEvent(noise_multiplier)
        moved = sqrt(2) * (self.features.bound**2 + 1 / 2)
        return GaussianDpEvent(noise_multiplier * self.bound / (moved / 2))

    def total(self, records: Records) -> BoundedSum:
        """The sum over all units, without noise."""
        feature_map = FeatureMap(self.features, self.input_shape).double()
        gram = np.zeros((self.size, self.size), order="F")
        moment = torch.zeros(self.size, self.num_classes, dtype=torch.float64)
        units_at_a_time = max(1, _ROWS_AT_A_TIME // records.rows_per_unit)
        for indices in torch.split(torch.arange(records.num_units), units_at_a_time):
            rows, labels = self.rows(feature_map, records.gather(indices))
            gram = dsyrk(1.0, rows.T.numpy(), beta=1.0, c=gram, overwrite_c=True)
            moment += rows.T @ labels
        # A unit adds x x^T and x y^T with |x| at most the features' bound and |y| at most 1, which `rows` sees to.
        return BoundedSum.of_sensitivity(torch.cat([_packed(gram), moment.flatten()]), self.bound, self._layout)

    def rows(self, feature_map: FeatureMap, batch: Batch) -> tuple[Tensor, Tensor]:
        """X and Y of a batch, float64. A row that is invalid, or whose label does not exist, is zero in both."""
        exists = batch.valid & (batch.target >= 0) & (batch.target < self.num_classes)
        features = at_most(self.features.bound, feature_map(batch.inputs[0].double()))
        labels = F.one_hot(torch.where(exists, batch.target, 0), self.num_classes).double()
        features, labels = features * exists[:, None], labels * exists[:, None]
        if self.unit is Unit.EXAMPLE:
            return features, labels
        root = self._unit_weights(features, labels, batch).sqrt()[
            :, None
        ]  # of which each of the two products takes one
        return features * root, labels * root

    def statistics(self, private: Private, noise_std: float) -> Statistics:
        return Statistics(self.gram(private), private.tensors()["moment"], noise_std)

    def gram(self, released: BoundedSum | Private) -> Tensor:
        """X^T X as a matrix, with noise or before."""
        return _unpacked(self._layout.split(released.value)["gram"], self.size)

    @property
    def _layout(self) -> Layout:
        return Layout(("gram", "moment"), ((self.size * (self.size + 1) // 2,), (self.size, self.num_classes)))

    def _unit_weights(self, features: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        """For each row, by how much its unit as a whole is scaled down. The norm of a sum follows from products."""
        products = features @ features.T
        products = products.square() + products * (labels @ labels.T)
        own = torch.where(batch.units[:, None] == batch.units, products, 0.0).sum(dim=1)
        norms = torch.zeros(batch.num_units, dtype=torch.float64).index_add_(0, batch.units, own).clamp(min=0).sqrt()
        return (self.bound * (1 - 2.0**-19) / norms).clamp(max=1.0)[batch.units]


def release_statistics(
    budget: Budget,
    features: Features,
    *,
    num_classes: int,
    noise_multiplier: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    seed: int | None = None,
    key: Key | None = None,
) -> Statistics:
    """X^T X and X^T Y of the features and labels of `budget`, with noise of `noise_multiplier` times sqrt(B^4 + B^2).

    With a `seed` they are reproducible, and whoever knows the seed can remove the noise.

    >>> from sordino.convex.random_features import RandomReLU
    >>> budget = Budget((torch.rand(100, 3), torch.zeros(100, dtype=torch.int64)))
    >>> statistics = release_statistics(budget, RandomReLU(width=5), num_classes=2, noise_multiplier=2.0, seed=0)
    >>> statistics.gram.shape, statistics.moment.shape, budget.releases
    (torch.Size([5, 5]), torch.Size([5, 2]), ('sufficient statistics',))
    """
    validate.instance(Budget, budget=budget)
    validate.instance(Adjacency, adjacency=adjacency)
    key = key_of(seed, key)
    noise, summation = Gaussian(noise_multiplier), Summation.of(budget.records, features, num_classes)
    private = budget.release(
        "sufficient statistics",
        noise=noise,
        adjacency=adjacency,
        key=key,
        total_of=lambda: summation.total(budget.records),
        event=summation.event(noise_multiplier, adjacency),
    )
    return summation.statistics(private, noise.std(summation.bound))


def key_of(seed: int | None, key: Key | None) -> Key:
    """The key that was given, or one from the seed, or a fresh one."""
    if seed is not None and key is not None:
        raise UsageError("seed and key exclude each other: a seed makes the noise reproducible, a key keeps it secret.")
    key = key or (Key.fresh() if seed is None else Key.from_seed(seed))
    validate.instance(Key, key=key)
    return key


def _packed(gram: NDArray[np.float64]) -> Tensor:
    """The upper triangle by rows, off the diagonal times sqrt(2)."""
    rows = torch.from_numpy(gram)
    packed = torch.cat([row[position:] for position, row in enumerate(rows)]).mul_(sqrt(2))
    packed[_diagonal(len(rows))] /= sqrt(2)
    return packed


def _unpacked(packed: Tensor, size: int) -> Tensor:
    gram = torch.zeros(size, size, dtype=torch.float64)
    for row, part in zip(range(size), torch.split(packed / sqrt(2), list(range(size, 0, -1))), strict=True):
        gram[row, row:] = gram[row:, row] = part
    return gram.diagonal_scatter(packed[_diagonal(size)])


def _diagonal(size: int) -> Tensor:
    """Where the packed triangle holds the diagonal."""
    lengths = torch.arange(size, 0, -1)
    return lengths.cumsum(0) - lengths
