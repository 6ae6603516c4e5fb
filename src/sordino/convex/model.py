"""Models that are linear in their trained weights, on fixed features whose norm has a public bound.

A two-layer ReLU network f(x) = sum_i relu(x . u_i) a_i has an equivalent convex form (Pilanci and Ergen 2020), in which
fixed gates 1(u_i . x >= 0) select the linear maps V_i that apply to an input. With random gates and without the cone
constraints, training is an unconstrained problem that is convex in V, as hidden-state privacy requires.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError

_RAISED = 1 + 2.0**-20


@runtime_checkable
class ConvexModel(Protocol):
    """A model with outputs V^T phi(x): a loss that is convex in the outputs is convex in V."""

    @property
    def feature_bound(self) -> float:
        """An upper bound of the L2 norm of phi(x) for every x. It depends on the model only, not on the data."""
        ...

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """Returns the module, with V = 0."""
        ...


@dataclass(frozen=True)
class GatedReLU:
    """Gated ReLU network: features (1(u_i . x >= 0) x / sqrt(P)) for i = 1..P, of inputs scaled to norm at most 1.

    The gates u_i are normal, public, fixed by `seed` and not trained. If all gates are open, the features have the norm
    of x; otherwise they are shorter.

    >>> model = GatedReLU(gates=8).build(inputs=5, outputs=3)
    >>> model(torch.randn(2, 5)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 3]), 120)
    """

    gates: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        validate.count(gates=self.gates)
        validate.count(at_least=0, at_most=2**63 - 1, seed=self.seed)

    @property
    def feature_bound(self) -> float:
        return 1.0

    def build(self, inputs: int, outputs: int) -> nn.Module:
        generator = torch.Generator().manual_seed(self.seed)
        return _GatedLayer(torch.randn(self.gates, inputs, generator=generator), outputs)


@dataclass(frozen=True)
class PairedReLU:
    """Gated ReLU network with pairs of opposite gates, 1(u . x >= 0) and 1(u . x < 0), of which exactly one is open.

    So half of the gates are open for every x, and features scaled by sqrt(2 / P) are as long as x. The features of
    `GatedReLU` are shorter by a factor sqrt(2) for most x. Under the same norm bound, a step of the same learning rate
    therefore changes the outputs twice as much.

    >>> model = PairedReLU(gates=8).build(inputs=5, outputs=3)
    >>> model(torch.randn(2, 5)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 3]), 120)
    """

    gates: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        validate.count(at_least=2, gates=self.gates)
        if self.gates % 2:
            raise UsageError(f"gates must be even, because gates come in opposite pairs, got {self.gates}.")
        validate.count(at_least=0, at_most=2**63 - 1, seed=self.seed)

    @property
    def feature_bound(self) -> float:
        return 1.0

    def build(self, inputs: int, outputs: int) -> nn.Module:
        generator = torch.Generator().manual_seed(self.seed)
        return _PairedLayer(torch.randn(self.gates // 2, inputs, generator=generator), outputs)


@dataclass(frozen=True)
class Linear:
    """Linear model of inputs scaled to norm at most 1, which may be precomputed features.

    >>> Linear().build(inputs=5, outputs=3)(torch.randn(2, 5)).shape
    torch.Size([2, 3])
    """

    @property
    def feature_bound(self) -> float:
        return 1.0

    def build(self, inputs: int, outputs: int) -> nn.Module:
        layer = nn.Linear(inputs, outputs, bias=False)
        nn.init.zeros_(layer.weight)
        return nn.Sequential(_BoundedFeatures(), layer)


class _GatedLayer(nn.Module):
    """One linear map for each gate. The output is the sum of the maps whose gates are open."""

    gates: Tensor
    maps_per_gate = 1

    def __init__(self, gates: Tensor, outputs: int) -> None:
        super().__init__()
        self.register_buffer("gates", gates)
        self.maps = nn.Linear(gates.shape[1], self.maps_per_gate * len(gates) * outputs, bias=False)
        nn.init.zeros_(self.maps.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = bounded(x)
        is_open = self._open(nn.functional.linear(x, self.gates) >= 0)
        weights = is_open.to(x.dtype) / math.sqrt(len(self.gates))
        return torch.einsum("bi,bio->bo", weights, self.maps(x).unflatten(1, (is_open.shape[1], -1)))

    def _open(self, positive: Tensor) -> Tensor:
        return positive


class _PairedLayer(_GatedLayer):
    """A gated layer with a second map for the opposite side of each gate."""

    maps_per_gate = 2

    def _open(self, positive: Tensor) -> Tensor:
        return torch.cat([positive, ~positive], dim=1)


class _BoundedFeatures(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return bounded(x)


def bounded(inputs: Tensor) -> Tensor:
    """Flattens each row to a vector and scales it down to norm at most 1. A row's result depends on that row only.

    Norms are computed in float64, where the sum of n squares has a relative error of at most n 2^-53, and are raised by
    2^-20. For n up to 2^30 this covers that error and the rounding of quotients and features to float32.

    >>> bounded(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    rows = inputs.flatten(1)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64) * _RAISED
    return rows / lengths.clamp(min=1.0).to(rows.dtype)
