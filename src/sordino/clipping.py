"""From what each unit would add to a sum to which each adds a bounded vector: PerExample -> BoundedSum.

Guarantee: replacing one unit by nothing moves the sum by at most `bound` in L2. Every weight is a function of that
unit's own norms and is rounded down by 2**-19, which covers the rounding of norms, and of sums in float64 for batches
of up to 100,000 units. Taped gradients are added up in float32 matrix products, as in plain training: their rounding is
not covered in the worst case, and was measured below 1e-4 of the bound in hostile batches (docs/attack-model.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordino import validate
from sordino.errors import UsageError
from sordino.states import BoundedSum, PerExample, WeightsOf

_ROUNDED_DOWN = 1 - 2.0**-19
_LARGEST_NORM = 2.0**100  # an example beyond it says nothing, and counts as absent
_ROWS_AT_A_TIME = 16


@runtime_checkable
class Clip(Protocol):
    """Bounds what each unit adds, and adds up."""

    @property
    def bound(self) -> float:
        """The largest L2 norm of what one unit adds."""
        ...

    def __call__(self, each: PerExample) -> BoundedSum: ...


@dataclass(frozen=True)
class ClipByNorm:
    """Scales each unit's whole gradient down to L2 norm at most `norm`.

    >>> from sordino.states import Dense, Layout
    >>> each = Dense(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), Layout(("w",), ((2,),)))
    >>> ClipByNorm(1.0)(each).value.round(decimals=4)
    tensor([0.9000, 1.2000], dtype=torch.float64)
    """

    norm: float

    def __post_init__(self) -> None:
        _check_norm(norm=self.norm)

    @property
    def bound(self) -> float:
        return self.norm

    def __call__(self, each: PerExample) -> BoundedSum:
        return _bounded_sum(each, self.bound, lambda squares: _shrink(squares.sum(dim=1).sqrt(), self.norm))


@dataclass(frozen=True)
class ClipPerLayer:
    """Scales each parameter tensor's gradient down on its own: parameter `p` to at most `norms[p]`.

    The bound of the whole is the root of the sum of squares, not their maximum.
    """

    norms: tuple[float, ...]

    def __init__(self, norms: Sequence[float]) -> None:
        object.__setattr__(self, "norms", tuple(norms))
        if not self.norms:
            raise UsageError("norms must hold one clip norm per parameter tensor, got none.")
        for position, norm in enumerate(self.norms):
            _check_norm(**{f"norms[{position}]": norm})

    @property
    def bound(self) -> float:
        return hypot(*self.norms)

    def __call__(self, each: PerExample) -> BoundedSum:
        if len(self.norms) != len(each.layout.names):
            raise UsageError(f"norms must hold {len(each.layout.names)} clip norms, got {len(self.norms)}.")

        def weights(squares: Tensor) -> Tensor:
            shrink = _shrink(squares.sqrt(), squares.new_tensor(self.norms))
            usable = (shrink > 0).all(dim=1, keepdim=True)  # a unit with one bad block counts as absent as a whole
            return torch.where(usable, shrink, 0.0)

        return _bounded_sum(each, self.bound, weights)


@dataclass(frozen=True)
class Normalise:
    """Scales each gradient g to `norm` * g / (|g| + `stabiliser`): automatic clipping (Bu et al. 2023)."""

    norm: float = 1.0
    stabiliser: float = 0.01

    def __post_init__(self) -> None:
        _check_norm(norm=self.norm)
        validate.positive(stabiliser=self.stabiliser)

    @property
    def bound(self) -> float:
        return self.norm

    def __call__(self, each: PerExample) -> BoundedSum:
        def weights(squares: Tensor) -> Tensor:
            norms = squares.sum(dim=1).sqrt()
            return torch.where(norms < _LARGEST_NORM, self.norm * _ROUNDED_DOWN / (norms + self.stabiliser), 0.0)

        return _bounded_sum(each, self.bound, weights)


def _shrink(norms: Tensor, largest: float | Tensor) -> Tensor:
    """min(1, largest / norm), and 0 where the norm is not finite: such a unit counts as absent."""
    shrink = (largest * _ROUNDED_DOWN / norms).clamp(max=1.0)
    return torch.where(norms < _LARGEST_NORM, shrink, 0.0)


def _bounded_sum(each: PerExample, bound: float, weights_of: WeightsOf) -> BoundedSum:
    total, weights = each.sum_weighted_by(weights_of)
    # One coordinate that is not finite makes the sum of all of them so, and clipped terms do not overflow.
    if not bool(total.sum().isfinite()):
        total = _sum_of_rows(each, weights)
    return BoundedSum(total, bound, each.layout)


def _sum_of_rows(each: PerExample, weights: Tensor) -> Tensor:
    """The same sum with absent units left out rather than multiplied by zero, because 0 * NaN is NaN."""
    sizes = torch.tensor(each.layout.sizes, device=weights.device)
    total = torch.zeros(each.layout.size, dtype=torch.float64, device=weights.device)
    for weight, rows in zip(torch.split(weights, _ROWS_AT_A_TIME), each.rows(_ROWS_AT_A_TIME), strict=True):
        spread = weight.repeat_interleave(sizes, dim=1)
        total += torch.where(spread > 0, rows.to(torch.float64) * spread, 0.0).sum(dim=0)
    return total


def _check_norm(**norms: float) -> None:
    validate.positive(**norms)
    for name, norm in norms.items():
        if not 1e-12 <= norm <= 1e12:
            raise UsageError(f"{name} must be in [1e-12, 1e+12], got {norm!r}.")
