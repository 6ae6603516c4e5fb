"""Clips: they bound what each unit adds, and add up. PerExample -> BoundedSum.

Guarantee: replacing one unit by zero, in its place in the batch, moves the sum by at most `bound` in L2 norm, for all
float32 values that units may hold. Each weight is a function of that unit's own norms, and scales its vector to
slightly less than the clip norm (to the fraction `SCALED_TO` of it). The rest is room for rounding errors:

* of the sum of the other units, which may round differently: 2 `SUM_ERROR`, by the theorem in `gradients.rounding`;
* of norms: `RELATIVE_ERROR`, and squares that underflow in float32, which are counted as 2^-126 each;
* of weights, which are rounded to float32: 2^-24;
* of sums in float64: up to 2^12 micro-batches are added to a sum of norm at most 2^20 times the bound, with an error of
  2^-53 of it each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients.norms import LOST_SQUARE, RELATIVE_ERROR
from sordino.gradients.rounding import SUM_ERROR
from sordino.kernel.states import BoundedSum, PerExample, WeightsOf

SCALED_TO = 1 - (2 * SUM_ERROR + RELATIVE_ERROR + 2.0**-17)
_LARGEST_NORM = 2.0**80  # a unit with a larger gradient counts as absent
_LARGEST_WEIGHT = 2.0**40  # bounds weights, absolutely and as a multiple of the clip norm
_ROWS_AT_A_TIME = 16


@runtime_checkable
class Clip(Protocol):
    """Scales the contribution of each unit to a bounded norm, and adds them up."""

    @property
    def bound(self) -> float:
        """The largest L2 norm that one unit adds."""
        ...

    def __call__(self, each: PerExample) -> BoundedSum: ...


@dataclass(frozen=True)
class ClipByNorm:
    """Scales each unit's whole gradient down to L2 norm at most `norm`.

    >>> from sordino.kernel.states import Dense, Layout
    >>> each = Dense(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), Layout(("w",), ((2,),)))
    >>> ClipByNorm(1.0)(each).value.round(decimals=4)
    tensor([0.8980, 1.1974], dtype=torch.float64)
    """

    norm: float

    def __post_init__(self) -> None:
        _check_norm(norm=self.norm)

    @property
    def bound(self) -> float:
        return self.norm

    def __call__(self, each: PerExample) -> BoundedSum:
        underflow = LOST_SQUARE * each.layout.size

        def weights(squares: Tensor) -> Tensor:
            return _shrink((squares.sum(dim=1) + underflow).sqrt(), self.norm)

        return _bounded_sum(each, self.bound, weights)


@dataclass(frozen=True)
class ClipPerLayer:
    """Scales the gradient of each parameter tensor down separately, that of parameter `p` to at most `norms[p]`.

    The bound of the whole gradient is the root of the sum of squares of the norms, not their maximum.
    """

    norms: tuple[float, ...]

    def __init__(self, norms: Sequence[float]) -> None:
        validate.instance(Sequence, norms=norms)
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
            underflow = LOST_SQUARE * squares.new_tensor(each.layout.sizes)
            shrink = _shrink((squares + underflow).sqrt(), squares.new_tensor(self.norms))
            usable = (shrink > 0).all(dim=1, keepdim=True)  # a unit with one unusable block counts as absent
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
        if self.stabiliser * _LARGEST_WEIGHT < max(1.0, self.norm):
            least = f"1e-12 and 1e-12 times norm={self.norm!r}"
            raise UsageError(f"stabiliser must be at least {least}, got {self.stabiliser!r}.")

    @property
    def bound(self) -> float:
        return self.norm

    def __call__(self, each: PerExample) -> BoundedSum:
        def weights(squares: Tensor) -> Tensor:
            norms = (squares.sum(dim=1) + LOST_SQUARE * each.layout.size).sqrt()
            return torch.where(norms < _LARGEST_NORM, self.norm * SCALED_TO / (norms + self.stabiliser), 0.0)

        return _bounded_sum(each, self.bound, weights)


def _shrink(norms: Tensor, largest: float | Tensor) -> Tensor:
    """min(1, largest / norm), slightly reduced, or 0 if the norm is not finite: such a unit counts as absent."""
    shrink = (largest * SCALED_TO / norms).clamp(max=1.0)
    return torch.where(norms < _LARGEST_NORM, shrink, 0.0)


def _bounded_sum(each: PerExample, bound: float, weights_of: WeightsOf) -> BoundedSum:
    total, weights = each.sum_weighted_by(weights_of, bound)
    # The sum of all coordinates is finite only if each is, because clipped terms do not overflow. Taped gradients leave
    # absent units out themselves; gradients held as rows are summed in float64 in both cases.
    if not bool(total.sum().isfinite()):
        total = _sum_of_rows(each, weights)
    return BoundedSum(total, bound, each.layout)


def _sum_of_rows(each: PerExample, weights: Tensor) -> Tensor:
    """The weighted sum, in which absent units are left out and not multiplied by zero, because 0 * NaN is NaN."""
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
            raise UsageError(f"{name} must be in [1e-12, 1e+12], got {validate.described(norm)}.")
