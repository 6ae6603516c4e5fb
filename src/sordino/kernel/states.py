"""Types for the privacy states of a gradient: PerExample -> BoundedSum -> Private.

Index letters used throughout the kernel: `b` is a privacy unit (an example or a user), `p` is a block of coordinates
(one parameter tensor, in the order of `Layout`), `d` is all coordinates, flattened and concatenated.

Only the stages move a gradient from one state to the next, and each arrow has one owner: a clip makes a `BoundedSum`,
a noise makes a `Private`. No state has arithmetic that could undo what the arrow established.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients.rounding import in_float64
from sordino.gradients.torch_state import original

WeightsOf = Callable[[Tensor], Tensor]  # squared norms (b, p) -> weights (b,) or (b, p), each unit from its own norms

_ROWS_AT_A_TIME = 32
_FLOAT32_ROUNDING = 2.0**-24  # relative error of rounding a value to float32
_NORM_ROUNDING = 2.0**-30  # upper bound on the relative error of float64 norms, for rows of up to 2^20 values
_NAMES_SHOWN = 8
NUMBERS_AT_A_TIME = 1 << 18  # chunk size for vectors that several passes go over: 2 MiB in float64 stay in cache


@dataclass(frozen=True)
class Layout:
    """Position of each trainable parameter in the flat vector of length `size`. Public: it depends on the model only.

    >>> Layout.of(nn.Linear(3, 2))
    Layout(names=('weight', 'bias'), shapes=((2, 3), (2,)))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of the trainable parameters of `model`. A tied parameter counts once.

        A model inside `torch.compile` has the names that it has outside.
        """
        named = [(name, parameter) for name, parameter in original(model).named_parameters() if parameter.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(tuple(parameter.shape) for _, parameter in named))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a flat vector, or of a matrix with one flat vector per row: one view per parameter, in its shape."""
        parts = torch.split(flat, list(self.sizes), dim=-1)
        shapes = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)) for name, part, shape in shapes}


@runtime_checkable
class PerExample(Protocol):
    """The contribution of each privacy unit, before any bound. Lazy: it need not hold one gradient per unit.

    Guarantee: the contribution of unit `b` is a function of that unit's records (and of public values) only.
    """

    @property
    def layout(self) -> Layout:
        """The blocks of the coordinates; `squared_norms` has one column for each block."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared L2 norms, float64, shape (b, p): one column per block of coordinates."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over units of weight times contribution, float64, shape (d,). `weights` is (b,), or (b, p) by block."""
        ...

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        """The weighted sum for weights that are a function of the squared norms, and the weights, shape (b, p).

        One call, so that values computed for the norms can be used again for the sum. `weights_of` may be called for
        some units at a time, and computes each unit's weights from that unit's norms. The sum has the precision in
        which it was added up: if no unit adds more than `bound`, the rounding error is at most
        `gradients.rounding.SUM_ERROR` times `bound`.
        """
        ...

    def masked(self, keep: Tensor) -> PerExample:
        """These contributions with zeros at the coordinates where `keep`, shape (d,), is False."""
        ...

    def rows(self, chunk: int) -> Iterator[Tensor]:
        """The contributions themselves, shape (at most `chunk`, d), in order. They define all methods above."""
        ...


def _repr(kind: str, values: Tensor, layout: Layout, also: str = "") -> str:
    """A repr with shape, dtype and parameter names. It has no values: messages and logs must not show a gradient."""
    shown, more = ", ".join(layout.names[:_NAMES_SHOWN]), len(layout.names) - _NAMES_SHOWN
    names = f"{shown} and {more} more" if more > 0 else shown
    return f"{kind}({also}shape={tuple(values.shape)}, dtype={values.dtype}, of={names})"


def by_block(weights: Tensor, layout: Layout) -> Tensor:
    """Weights of shape (b, p), from weights per unit or per unit and block."""
    return weights if weights.ndim == 2 else weights[:, None].expand(-1, len(layout.sizes))


@dataclass(frozen=True, repr=False)
class Dense:
    """Contributions held as a matrix, one row per unit. Tests compare every lazy form with this one.

    >>> each = Dense(torch.tensor([[3.0, 4.0, 1.0]]), Layout(("weight", "bias"), ((2,), (1,))))
    >>> each.squared_norms()
    tensor([[25.,  1.]], dtype=torch.float64)
    """

    matrix: Tensor
    layout: Layout

    def __repr__(self) -> str:
        return _repr("Dense", self.matrix, self.layout)

    def squared_norms(self) -> Tensor:
        columns = [torch.linalg.vector_norm(block, dim=1, dtype=torch.float64) for block in self._blocks()]
        return torch.stack(columns, dim=1).square() if columns else self.matrix.new_zeros((len(self.matrix), 0))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        weights = by_block(weights, self.layout)
        sums = [_sum_in_float64(weights[:, p], block) for p, block in enumerate(self._blocks())]
        return torch.cat(sums) if sums else self.matrix.new_zeros(0)

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        weights = by_block(weights_of(self.squared_norms()), self.layout)
        return self.weighted_sum(weights), weights

    def masked(self, keep: Tensor) -> Dense:
        return Dense(torch.where(keep, self.matrix, self.matrix.new_zeros(())), self.layout)

    def rows(self, chunk: int) -> Iterator[Tensor]:
        yield from torch.split(self.matrix, chunk)

    def _blocks(self) -> Sequence[Tensor]:
        return torch.split(self.matrix, list(self.layout.sizes), dim=1)


def _sum_in_float64(weights: Tensor, rows: Tensor) -> Tensor:
    """The weighted sum of rows, in float64.

    In float32, adding a unit could change how the sum of the others rounds, by more than the bound on that unit.
    """
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    chunks = torch.split(rows, _ROWS_AT_A_TIME)
    for weight, chunk in zip(torch.split(weights.double(), _ROWS_AT_A_TIME), chunks, strict=True):
        total += weight @ chunk.double()
    return total


@dataclass(frozen=True)
class BoundedSum:
    """A sum to which each unit adds a vector of L2 norm at most `bound`.

    The only arithmetic is addition of the sum of other, disjoint units, in float64, which does not raise the bound. If
    it could be rescaled, or divided by the number of units that joined, its bound would no longer be true.
    """

    value: Tensor = field(repr=False)  # it has no noise yet, so no message may show it
    bound: float
    layout: Layout

    def __post_init__(self) -> None:
        validate.positive(bound=self.bound)

    @classmethod
    def of_nobody(cls, bound: float, layout: Layout) -> BoundedSum:
        """The sum over no units, which is zero: the start of a sum that is added up batch by batch.

        >>> BoundedSum.of_nobody(1.0, Layout(("w",), ((2,),))).value
        tensor([0., 0.], dtype=torch.float64)
        """
        return cls(torch.zeros(layout.size, dtype=torch.float64), bound, layout)

    @classmethod
    def of_rows(cls, rows: Tensor, bound: float, layout: Layout) -> BoundedSum:
        """The sum of the rows, one per unit, shape (b, d), each scaled down to L2 norm at most `bound`.

        Guarantee: the bound is enforced, not claimed. A row within the bound is added unchanged, a row beyond it is
        scaled to a little less than the bound, and a row that is not finite counts as absent. Norms and sums are
        computed in float64. They are exact for rows of one value that is a multiple of 2^-20, such as counts and
        scores. For other rows use a clip, which leaves room for rounding errors.

        >>> BoundedSum.of_rows(torch.tensor([[0.5], [1.0], [300.0]]), 1.0, Layout(("w",), ((1,),))).value
        tensor([2.5000], dtype=torch.float64)
        """
        rows = rows.double()
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        shrunk = torch.where(norms > bound, bound * (1 - _NORM_ROUNDING) / norms, 1.0) * rows
        return cls(torch.where(norms.isfinite(), shrunk, 0.0).sum(dim=0), bound, layout)

    @classmethod
    def of_sensitivity(cls, value: Tensor, sensitivity: float, layout: Layout) -> BoundedSum:
        """Any function of the data that changes by at most `sensitivity` in L2 norm if one unit is left out.

        This is all that noise relies on. It cannot be checked here: the caller must prove it.

        >>> BoundedSum.of_sensitivity(torch.tensor([120.0, 80.0]), 1.0, Layout(("counts",), ((2,),))).bound
        1.0
        """
        return cls(value, sensitivity, layout)

    @classmethod
    def from_wire(cls, value: Tensor, bound: float, layout: Layout, *, units: int) -> BoundedSum:
        """A sum that was received as float32, and so was rounded by its sender.

        Guarantee: rounding changes each value by at most 2^-24 of its size. So it moves a sum of at most `units`
        vectors of norm at most `bound` by at most `units * bound * 2^-24`, and the distance of the sums of two
        neighboring datasets by twice that. The bound of the result is larger by this amount.
        It must hold, and cannot be checked here, that the sender clipped each of its units to `bound`, added up no more
        than `units` of them, and shares none with another sender.

        >>> BoundedSum.from_wire(torch.zeros(2), 1.0, Layout(("w",), ((2,),)), units=2**20).bound
        1.125
        """
        return cls(value, bound * (1 + 2 * units * _FLOAT32_ROUNDING), layout)

    def __repr__(self) -> str:
        return _repr("BoundedSum", self.value, self.layout, f"bound={self.bound}, ")

    def __add__(self, other: BoundedSum) -> BoundedSum:
        self._check_same_bound(other)
        return BoundedSum(add_(in_float64(self.value), other.value), self.bound, self.layout)

    def __iadd__(self, other: BoundedSum) -> BoundedSum:
        """Adds in this sum's own memory, so that a step of many micro-batches holds one sum."""
        self._check_same_bound(other)
        own = self.value if self.value.dtype == torch.float64 else in_float64(self.value)
        return BoundedSum(add_(own, other.value), self.bound, self.layout)

    def shifted(self, start: Tensor) -> BoundedSum:
        """The sum plus `start`, a vector that must not depend on the units of the sum.

        It moves the sums of neighboring datasets alike, so the bound still holds.
        """
        return BoundedSum(add_(in_float64(self.value), start), self.bound, self.layout)

    def _check_same_bound(self, other: BoundedSum) -> None:
        if other.bound != self.bound:
            raise UsageError(f"sums with different bounds cannot be added: {self.bound} and {other.bound}.")


def add_(total: Tensor, part: Tensor) -> Tensor:
    """Adds to a float64 sum in place, in chunks: torch copies a float32 part first, and small copies stay in cache."""
    for piece, added in zip(*(torch.split(x, NUMBERS_AT_A_TIME) for x in (total, part)), strict=True):
        piece.add_(added)
    return total


@dataclass(frozen=True)
class Private:
    """A released vector, `undivided` / `divisor`. Computing anything from it is post-processing and costs no privacy.

    `noise_square` is the mean square of its noise, one value for all coordinates or one per coordinate, and 0 if it is
    unknown. It is as public as the plan. Encodings and noises that learn from releases subtract it.

    >>> Private(torch.tensor([1.0, 3.0]), Layout(("w",), ((2,),))).divide(2).value
    tensor([0.5000, 1.5000])
    """

    undivided: Tensor
    layout: Layout
    noise_square: float | Tensor = field(default=0.0, kw_only=True, repr=False)
    divisor: float = field(default=1.0, kw_only=True)

    @cached_property
    def value(self) -> Tensor:
        """The vector itself. `write_to` does not use it, and divides in the precision of the parameters."""
        return self.undivided if self.divisor == 1.0 else self.undivided / self.divisor

    def __repr__(self) -> str:
        return _repr("Private", self.undivided, self.layout)

    def divide(self, public_number: float) -> Private:
        """Divides by a number that does not depend on the data: the expected batch size, never the drawn one."""
        validate.positive(public_number=public_number)
        return Private(self.value, self.layout, divisor=public_number)

    def lift(
        self, mapped: Callable[[Tensor], Tensor], layout: Layout | None = None, *, noise_square: float | Tensor = 0.0
    ) -> Private:
        """Applies the function `mapped` to the value. The result has layout `layout`, by default the present one.

        Guarantee: post-processing, if `mapped` uses nothing but the released vector, public values and earlier
        releases, which the caller must ensure. Then the result is as private as the release and costs nothing, whether
        or not the function is linear. The noise is not tracked: after a linear map, the caller can compute its mean
        square and pass it as `noise_square`.

        >>> released = Private(torch.tensor([1.0, 3.0]), Layout(("w",), ((2,),)), noise_square=1.0)
        >>> doubled = released.lift(lambda value: 2 * value, noise_square=4.0)
        >>> doubled.value, doubled.noise_square
        (tensor([2., 6.]), 4.0)
        """
        layout, value = layout or self.layout, mapped(self.value)
        if value.shape != (layout.size,):
            raise UsageError(f"mapped must return a vector of length {layout.size}, got shape {(*value.shape,)}.")
        return Private(value, layout, noise_square=noise_square)

    def tensors(self) -> dict[str, Tensor]:
        """The vector as one tensor per trainable parameter, by name."""
        return self.layout.split(self.value)

    @torch.no_grad()
    def write_to(self, model: nn.Module) -> None:
        """Writes each part to `.grad` of its parameter. It replaces the old gradient and uses its memory again."""
        inner = original(model)
        trained = {name: parameter for name, parameter in inner.named_parameters() if parameter.requires_grad}
        if Layout(tuple(trained), tuple(tuple(parameter.shape) for parameter in trained.values())) != self.layout:
            raise UsageError(
                "the gradient was computed for other trainable parameters than the model has: "
                "write it to the model of its run, and do not change requires_grad during a run."
            )
        for parameter, part in zip(trained.values(), self.layout.split(self.undivided).values(), strict=True):
            if parameter.grad is None or parameter.grad.layout is not torch.strided or parameter.grad.is_inference():
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part).div_(self.divisor)
