"""Random features of a row: public maps with a public norm bound, drawn from a seed and never from data.

Letters: `n` rows, `d` numbers of an input, `p` random directions, `f` features. A row is first scaled down to norm at
most 1, then mapped, then scaled down to norm at most 1 again; a constant feature `bias` may follow. So every map has
the bound sqrt(1 + bias^2), whatever a record holds, and it is reached: the maps are scaled so that a row of norm 1 has
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
    """What decides a feature map. All of it is public."""

    bias: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        validate.between(0, 1e3, bias=self.bias)
        validate.count(at_least=0, at_most=2**63 - 1, seed=self.seed)

    @property
    def bound(self) -> float:
        """No row has features of a larger norm."""
        return hypot(1.0, self.bias)

    def size(self, num_inputs: int) -> int:
        """How many features a row of `num_inputs` numbers gets, with the constant one."""
        return self._mapped_size(num_inputs) + (self.bias > 0)

    @abstractmethod
    def directions(self, num_inputs: int) -> Tensor:
        """The random directions, shape (d, p)."""

    @abstractmethod
    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        """The features of rows (n, d) of norm at most 1, whose `projections` on the directions are (n, p)."""

    @abstractmethod
    def _mapped_size(self, num_inputs: int) -> int: ...

    def _normals(self, num_inputs: int, number: int) -> Tensor:
        drawn = Key.from_seed(self.seed).stream("random features").normals(num_inputs * number, step=0)
        return torch.from_numpy(drawn).float().reshape(number, num_inputs).T.contiguous()


@dataclass(frozen=True)
class GatedFeatures(Features):
    """The input once for each gate that it opens: (1(u_i.x >= 0) x)_i, the features of a gated ReLU network.

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
    """The hidden layer of a ReLU network with random weights: relu(w_i.x).

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
    """On which side of random hyperplanes an input lies: 1(w_i.x >= 0)."""

    def of(self, rows: Tensor, projections: Tensor) -> Tensor:
        return (projections >= 0).to(rows.dtype) * sqrt(2 / self.width)


@dataclass(frozen=True)
class RandomFourier(Features):
    """Cosines and sines in pairs, whose products approach exp(-gamma |x - x'|^2) (Rahimi and Recht 2007).

    A pair has norm 1 in every direction, which one cosine with a random phase has on average only: it would need the
    bound sqrt(2). `gamma` is for rows of norm at most 1, and public.

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
    """Inputs (n, *input_shape) of any numbers -> features (n, f) of norm at most `features.bound`."""

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
    """Each row scaled down to L2 norm at most `norm`. A row that is not finite becomes zero.

    >>> at_most(1.0, torch.tensor([[3.0, 4.0], [0.3, 0.4], [torch.nan, 1.0]])).round(decimals=4)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000],
            [0.0000, 0.0000]])
    """
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    scale = (norm * _ROUNDED_DOWN / norms).clamp(max=1.0).to(rows.dtype)
    return torch.where(norms.isfinite(), rows * scale, 0.0)
