"""Private sufficient statistics of least squares: X^T X and X^T Y with Gaussian noise, in one release.

A row with features x, |x| <= B, and one-hot label y adds T = (x x^T, x y^T). The upper triangle of the symmetric matrix
is released, with off-diagonal entries times sqrt(2), which preserves inner products:
<T, T'> = (x.x')^2 + (x.x')(y.y').

Guarantee: removing a row moves the sum by |T| <= sqrt(B^4 + B^2). Replacing it by another row moves the sum by
|T - T'|, whose square is at most 2 (B^4 + B^2) - 2 (a^2 + a (y.y')) with a = x.x'. The last bracket is at least -1/4,
reached for equal labels and a = -1/2, so |T - T'| <= sqrt(2) (B^2 + 1/2). Rows at such an angle exist unless the
constant feature is large, so no smaller bound is valid; in particular sqrt(2) sqrt(B^4 + B^2) is not. With noise on
each entry this is one Gaussian mechanism, which is charged before a row is read. The rows of a user are summed and
scaled down as a whole; replacing a user moves the sum by at most two norms.
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

MOST_FEATURES = 8_000  # their products take 2.3 GB with noise and eigenvectors
_ROWS_AT_A_TIME = 2048
_MOST_ROWS_PER_USER = 4096
_MOST_CLASSES = 10_000


@dataclass(frozen=True)
class Statistics:
    """X^T X (`gram`, symmetric, shape (f, f)) and X^T Y (`moment`, shape (f, k)) with noise. They may be published.

    The noise has standard deviation `noise_std` on the diagonal and on X^T Y, and noise_std / sqrt(2) elsewhere.
    """

    gram: Tensor
    moment: Tensor
    noise_std: float


@dataclass(frozen=True)
class Summation:
    """The computation of X^T X and X^T Y for the records of one budget. All its fields are public."""

    features: Features
    input_shape: tuple[int, ...]
    num_classes: int
    unit: Unit

    @classmethod
    def of(cls, records: Records, features: Features, num_classes: int) -> Summation:
        """Raises an error for records that cannot be summed. Only their public structure is checked."""
        validate.instance(Features, features=features)
        validate.count(at_least=2, at_most=_MOST_CLASSES, num_classes=num_classes)
        *inputs, target = records.rows.empty()
        if len(inputs) != 1 or not (inputs[0].is_floating_point() or inputs[0].dtype == torch.uint8):
            dtypes = ", ".join(str(x.dtype) for x in inputs)
            raise UsageError(f"inputs must be one float or uint8 tensor for sufficient statistics, got {dtypes}.")
        if target.is_floating_point() or target.ndim != 1:
            raise UsageError(f"targets must be one class index per row, got {target.dtype} of {target.ndim} axes.")
        if records.rows_per_unit > _MOST_ROWS_PER_USER:
            raise UsageError(f"rows_per_user must be at most {_MOST_ROWS_PER_USER}, got {records.rows_per_unit}.")
        shape = tuple(inputs[0].shape[1:])
        if (size := features.size(prod(shape))) > MOST_FEATURES:
            raise UsageError(
                f"a row must have at most {MOST_FEATURES} features, because all their products are stored, got {size}."
            )
        return cls(features, shape, num_classes, records.unit)

    @property
    def size(self) -> int:
        return self.features.size(prod(self.input_shape))

    @property
    def bound(self) -> float:
        """The largest norm of the vector that one unit adds."""
        return hypot(self.features.bound**2, self.features.bound)

    def event(self, noise_multiplier: float, adjacency: Adjacency) -> DpEvent:
        """The event of the release. Under replace-one a multiplier refers to half of the replacement's sensitivity."""
        if adjacency is not Adjacency.REPLACE_ONE or self.unit is Unit.USER:
            return GaussianDpEvent(noise_multiplier)
        moved = sqrt(2) * (self.features.bound**2 + 1 / 2)
        return GaussianDpEvent(noise_multiplier * self.bound / (moved / 2))

    def total(self, records: Records) -> BoundedSum:
        """The sum over all units, before noise."""
        feature_map = FeatureMap(self.features, self.input_shape).double()
        gram = np.zeros((self.size, self.size), order="F")
        moment = torch.zeros(self.size, self.num_classes, dtype=torch.float64)
        units_at_a_time = max(1, _ROWS_AT_A_TIME // records.rows_per_unit)
        for indices in torch.split(torch.arange(records.num_units), units_at_a_time):
            rows, labels = self.rows(feature_map, records.gather(indices))
            gram = dsyrk(1.0, rows.T.numpy(), beta=1.0, c=gram, overwrite_c=True)
            moment += rows.T @ labels
        # A unit adds x x^T and x y^T; `rows` makes sure that |x| <= the features' bound and |y| <= 1.
        return BoundedSum.of_sensitivity(torch.cat([_packed(gram), moment.flatten()]), self.bound, self._layout)

    def rows(self, feature_map: FeatureMap, batch: Batch) -> tuple[Tensor, Tensor]:
        """X and Y of a batch, float64. A row that is invalid, or whose label is out of range, is zero in both."""
        usable = batch.valid & (batch.target >= 0) & (batch.target < self.num_classes)
        features = at_most(self.features.bound, feature_map(batch.inputs[0].double()))
        labels = F.one_hot(torch.where(usable, batch.target, 0), self.num_classes).double()
        features, labels = features * usable[:, None], labels * usable[:, None]
        if self.unit is Unit.EXAMPLE:
            return features, labels
        # The square root, because both factors of x x^T and of x y^T are scaled.
        root = self._unit_weights(features, labels, batch).sqrt()[:, None]
        return features * root, labels * root

    def statistics(self, private: Private, noise_std: float) -> Statistics:
        return Statistics(self.gram(private), private.tensors()["moment"], noise_std)

    def gram(self, released: BoundedSum | Private) -> Tensor:
        """X^T X as a matrix, from a sum with or without noise."""
        return _unpacked(self._layout.split(released.value)["gram"], self.size)

    @property
    def _layout(self) -> Layout:
        return Layout(("gram", "moment"), ((self.size * (self.size + 1) // 2,), (self.size, self.num_classes)))

    def _unit_weights(self, features: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        """The factor by which each row's unit is scaled down. The norm of a unit's sum follows from inner products."""
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
    """Releases X^T X and X^T Y of `budget` with noise of standard deviation `noise_multiplier` * sqrt(B^4 + B^2).

    With a `seed` the release is reproducible, and everyone who knows the seed can remove the noise.

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
    """Returns `key` if given, else a key from `seed` if given, else a fresh key."""
    if seed is not None and key is not None:
        raise UsageError("seed and key exclude each other: a seed makes the noise reproducible, a key keeps it secret.")
    key = key or (Key.fresh() if seed is None else Key.from_seed(seed))
    validate.instance(Key, key=key)
    return key


def _packed(gram: NDArray[np.float64]) -> Tensor:
    """The upper triangle row by row, with off-diagonal entries times sqrt(2)."""
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
    """The positions of the diagonal in the packed triangle."""
    lengths = torch.arange(size, 0, -1)
    return lengths.cumsum(0) - lengths
