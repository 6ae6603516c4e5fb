"""Models that are linear in what is trained, on features whose norm has a public bound.

A two-layer ReLU network f(x) = sum_i relu(x . u_i) a_i has an equivalent convex form (Pilanci and Ergen 2020), in which
frozen gates 1(u_i . x >= 0) choose for which inputs the linear maps V_i count. With random gates, and without the cone
constraints, it is an unconstrained problem, convex in V: what hidden-state privacy needs.
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
    """Outputs V^T phi(x) with features of a public norm bound: a loss that is convex in outputs is convex in V."""

    @property
    def feature_bound(self) -> float:
        """The L2 norm of phi(x), at most, for every x. It is a fact of the model, not of the data."""
        ...

    def build(self, inputs: int, outputs: int) -> nn.Module:
        """The module, with V = 0."""
        ...


@dataclass(frozen=True)
class GatedReLU:
    """Features (1(u_i . x >= 0) x / sqrt(P)) for i = 1..P, of inputs scaled to norm at most 1.

    The gates u_i are normal, public and fixed by `seed`; nothing of them is trained. Since at most all gates are open,
    the norm of the features is at most that of x.

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
    """A gated ReLU network in which each gate has its opposite: one of 1(u . x >= 0) and 1(u . x < 0) is open.

    So exactly half of the gates are open for every x, and features scaled by sqrt(2 / P) are as long as x is, where
    those of `GatedReLU` are shorter by sqrt(2) for most x: the same bound lets each step go twice as far.

    >>> model = PairedReLU(gates=8).build(inputs=5, outputs=3)
    >>> model(torch.randn(2, 5)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([2, 3]), 120)
    """

    gates: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        validate.count(at_least=2, gates=self.gates)
        if self.gates % 2:
            raise UsageError(f"gates must be an even number, because each has its opposite: got {self.gates}.")
        validate.count(at_least=0, at_most=2**63 - 1, seed=self.seed)

    @property
    def feature_bound(self) -> float:
        return 1.0

    def build(self, inputs: int, outputs: int) -> nn.Module:
        generator = torch.Generator().manual_seed(self.seed)
        return _PairedLayer(torch.randn(self.gates // 2, inputs, generator=generator), outputs)


@dataclass(frozen=True)
class Linear:
    """Features x scaled to norm at most 1: a linear model, or one on features that were computed before.

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
    """One linear map for each gate, of which the open ones are added up."""

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
    """The same with a second map for the other side of each gate."""

    maps_per_gate = 2

    def _open(self, positive: Tensor) -> Tensor:
        return torch.cat([positive, ~positive], dim=1)


class _BoundedFeatures(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return bounded(x)


def bounded(inputs: Tensor) -> Tensor:
    """Each row as a vector of norm at most 1: longer ones are shortened. It acts on each row alone, by a public rule.

    Lengths are taken in float64, where the sum of squares of n numbers is off by n 2^-53 of itself at most, and raised
    by 2^-20: for up to 2^30 numbers that is more than this and the rounding of quotients and features to float32.

    >>> bounded(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    rows = inputs.flatten(1)
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64) * _RAISED
    return rows / lengths.clamp(min=1.0).to(rows.dtype)
