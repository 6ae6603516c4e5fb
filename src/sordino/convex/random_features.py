"""Random feature maps with a public norm bound. They are drawn from a public seed and do not depend on data.

Index letters: `n` rows, `d` input dimensions, `p` random directions, `f` features. A row is scaled down to norm at most
1, then mapped, then scaled down to norm at most 1 again; a constant feature `bias` may be appended. So every map has
the norm bound sqrt(1 + bias^2) for any record. The bound is nearly tight: maps are scaled so that a row of norm 1 has
features of norm 1 on average.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import hypot, prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino._input import validate
from sordino.kernel.randomness import Key

_ROUNDED_DOWN = 1 - 2.0**-19  # covers the rounding of norms and products in float32


@dataclass(frozen=True, kw_only=True)
class Features(ABC):
    """The settings of a feature map. All of them are public."""

    bias: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        validate.between(0, 1e3, bias=self.bias)
        validate.count(at_least=0, at_most=2**63 - 1, seed=self.seed)

    @property
    def bound(self) -> float:
        """The largest norm of the features of any row."""
        return hypot(1.0, self.bias)

    def size(self, num_inputs: int) -> int:
        """The number of features of a row with `num_inputs` values, including the constant feature."""
        return self._mapped_size(num_inputs) + (self.bias > 0)

    @abstractmethod
    def directions(self, num_inputs: int) -> Tensor:
        """The random directions, shape (d, p)."""

    @abstractmethod
    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        """The features of rows (n, d) of norm at most 1, given their `projections` (n, p) on the directions."""

    @abstractmethod
    def _mapped_size(self, num_inputs: int) -> int: ...

    def _normals(self, num_inputs: int, count: int) -> Tensor:
        normals = Key.from_seed(self.seed).stream("random features").normals(num_inputs * count, step=0)
        return torch.from_numpy(normals).float().reshape(count, num_inputs).T.contiguous()


@dataclass(frozen=True)
class GatedFeatures(Features):
    """Features of a gated ReLU network, (1(u_i.x >= 0) x)_i: one copy of the input for each open gate.

    >>> FeatureMap(GatedFeatures(gates=4), input_shape=(3,))(torch.ones(2, 3)).shape
    torch.Size([2, 12])
    """

    gates: int

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.count(gates=self.gates)

    def directions(self, num_inputs: int) -> Tensor:
        return self._normals(num_inputs, self.gates)

    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        open_gates = (projections >= 0).to(rows.dtype)
        return torch.einsum("np,nd->npd", open_gates, rows).flatten(1) * sqrt(2 / self.gates)

    def _mapped_size(self, num_inputs: int) -> int:
        return self.gates * num_inputs


@dataclass(frozen=True)
class RandomReLU(Features):
    """Features relu(w_i.x): the hidden layer of a ReLU network with random weights.

    >>> RandomReLU(width=100, bias=0.5).bound
    1.118033988749895
    """

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.count(width=self.width)

    def directions(self, num_inputs: int) -> Tensor:
        return self._normals(num_inputs, self.width)

    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        return projections.relu() * sqrt(2 / self.width)

    def _mapped_size(self, num_inputs: int) -> int:
        return self.width


@dataclass(frozen=True)
class RandomSigns(RandomReLU):
    """Features 1(w_i.x >= 0): the side of each random hyperplane on which the input lies."""

    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        return (projections >= 0).to(rows.dtype) * sqrt(2 / self.width)


@dataclass(frozen=True)
class RandomFourier(Features):
    """Random Fourier features: inner products approximate exp(-gamma |x - x'|^2) (Rahimi and Recht 2007).

    Cosines and sines come in pairs, because a pair has norm 1 for every input. A cosine with a random phase has norm 1
    on average only, and would need the bound sqrt(2). `gamma` is public and refers to rows of norm at most 1.

    >>> features = FeatureMap(RandomFourier(width=100, gamma=2.0), input_shape=(3,))(torch.rand(1, 3))
    >>> round(float(features.norm()), 3)
    1.0
    """

    width: int
    gamma: float

    def __post_init__(self) -> None:
        super().__post_init__()
        validate.count(width=self.width)
        validate.positive(gamma=self.gamma)

    def directions(self, num_inputs: int) -> Tensor:
        return sqrt(2 * self.gamma) * self._normals(num_inputs, (self.width + 1) // 2)

    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        return torch.cat([projections.cos(), projections.sin()], dim=1) / sqrt(projections.shape[1])

    def _mapped_size(self, num_inputs: int) -> int:
        return 2 * ((self.width + 1) // 2)


class FeatureMap(nn.Module):
    """Maps any inputs (n, *input_shape) to features (n, f) of norm at most `features.bound`."""

    directions: Tensor

    def __init__(self, features: Features, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.features, self.input_shape = features, input_shape
        self.register_buffer("directions", features.directions(prod(input_shape)))

    @property
    def size(self) -> int:
        return self.features.size(prod(self.input_shape))

    def forward(self, inputs: Tensor) -> Tensor:
        rows = at_most(1.0, inputs.reshape(len(inputs), prod(self.input_shape)).to(self.directions.dtype))
        mapped = at_most(1.0, self.features.of(rows, rows @ self.directions))
        return F.pad(mapped, (0, 1), value=self.features.bias) if self.features.bias > 0 else mapped


def at_most(norm: float, rows: Tensor) -> Tensor:
    """Scales each row down to L2 norm at most `norm`. A row that is not finite becomes zero.

    >>> at_most(1.0, torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]])).round(decimals=4)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    scale = (norm * _ROUNDED_DOWN / norms).clamp(max=1.0).to(rows.dtype)
    return torch.where(norms.isfinite(), rows * scale, 0.0)
