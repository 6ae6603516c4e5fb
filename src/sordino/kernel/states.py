"""A gradient's privacy state is its type: PerExample -> BoundedSum -> Private.

Index letters used throughout the kernel: `b` a privacy unit (an example, or a user), `p` a block of coordinates
(one parameter tensor, in the order of `Layout`), `d` all coordinates, flattened and concatenated.

Only the stages move a gradient from one state to the next, and each arrow has one owner: a clip makes a `BoundedSum`,
noise makes a `Private`. No state has arithmetic that could undo what the arrow established.
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

WeightsOf = Callable[[Tensor], Tensor]  # squared norms (b, p) -> weights (b,) or (b, p), each unit from its own norms

_ROWS_AT_A_TIME = 32
_OF_FLOAT32 = 2.0**-24  # by how much a number moves when it is rounded to float32, relative to it
_ROUNDED = 2.0**-30  # more than norms in float64 are rounded by, for rows of up to 2^20 numbers
_NAMES_SHOWN = 8
NUMBERS_AT_A_TIME = 1 << 18  # of a vector that several passes go over: two megabytes in float64 stay in cache


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector of length `size`. Public: it depends on the model only.

    >>> Layout.of(nn.Linear(3, 2))
    Layout(names=('weight', 'bias'), shapes=((2, 3), (2,)))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """The layout of the trainable parameters of `model`. A tied parameter counts once."""
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        return cls(tuple(name for name, _ in named), tuple(tuple(parameter.shape) for _, parameter in named))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector (or of rows of flat vectors), one per parameter, in its shape."""
        parts = torch.split(flat, list(self.sizes), dim=-1)
        shapes = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape((*flat.shape[:-1], *shape)) for name, part, shape in shapes}


@runtime_checkable
class PerExample(Protocol):
    """What each privacy unit would add, before any bound. Lazy: it need not hold a gradient per unit.

    Guarantee: the contribution of unit `b` is a function of that unit's records (and of public values) only.
    """

    @property
    def layout(self) -> Layout:
        """Which blocks the coordinates belong to; the columns of `squared_norms` are its blocks."""
        ...

    def squared_norms(self) -> Tensor:
        """Squared L2 norms, float64, shape (b, p): one column per block of coordinates."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over units of weight times contribution, float64, shape (d,). `weights` is (b,), or (b, p) by block."""
        ...

    def sum_weighted_by(self, weights_of: WeightsOf, bound: float = 0.0) -> tuple[Tensor, Tensor]:
        """The weighted sum with weights that are a function of squared norms, and the weights, shape (b, p).

        One call, so that what is computed for the norms can serve the sum. `weights_of` may be asked for some units at
        a time, and answers for each from its own norms. The sum has the precision in which it was added up: where no
        unit adds more than `bound`, its rounding is at most `OF_A_SUM` of `gradients.rounding` times that.
        """
        ...

    def masked(self, keep: Tensor) -> PerExample:
        """The same with zeros at the coordinates where `keep`, shape (d,), is False."""
        ...

    def rows(self, chunk: int) -> Iterator[Tensor]:
        """The contributions themselves, shape (at most `chunk`, d), in order. The definition of everything above."""
        ...


def _repr(kind: str, values: Tensor, layout: Layout, also: str = "") -> str:
    """Shape, dtype and names. Never a value: messages and logs must not show what a gradient holds."""
    shown, more = ", ".join(layout.names[:_NAMES_SHOWN]), len(layout.names) - _NAMES_SHOWN
    names = f"{shown} and {more} more" if more > 0 else shown
    return f"{kind}({also}shape={tuple(values.shape)}, dtype={values.dtype}, of={names})"


def by_block(weights: Tensor, layout: Layout) -> Tensor:
    """Weights as (b, p), whether they were given per unit or per unit and block."""
    return weights if weights.ndim == 2 else weights[:, None].expand(-1, len(layout.sizes))


@dataclass(frozen=True, repr=False)
class Dense:
    """Contributions held as a matrix, one row per unit: the plain form that every lazy one is compared with.

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
    """In float32 the rounding of the others' sum would move with each unit, beyond any bound on what the unit adds."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    chunks = torch.split(rows, _ROWS_AT_A_TIME)
    for weight, chunk in zip(torch.split(weights.double(), _ROWS_AT_A_TIME), chunks, strict=True):
        total += weight @ chunk.double()
    return total


@dataclass(frozen=True)
class BoundedSum:
    """A sum to which each unit adds a vector of L2 norm at most `bound`.

    It can be added to the sum of other, disjoint units, in float64, which does not raise the bound, and nothing else: a
    sum that could be rescaled, or divided by the number of units that joined, would carry a bound that is no longer
    true.
    """

    value: Tensor = field(repr=False)  # no message may show what has no noise yet
    bound: float
    layout: Layout

    def __post_init__(self) -> None:
        validate.positive(bound=self.bound)

    @classmethod
    def of_nobody(cls, bound: float, layout: Layout) -> BoundedSum:
        """The sum over no units, which is zero: where sums begin that grow batch by batch.

        >>> BoundedSum.of_nobody(1.0, Layout(("w",), ((2,),))).value
        tensor([0., 0.], dtype=torch.float64)
        """
        return cls(torch.zeros(layout.size, dtype=torch.float64), bound, layout)

    @classmethod
    def of_rows(cls, rows: Tensor, bound: float, layout: Layout) -> BoundedSum:
        """The sum of the rows, one per unit, shape (b, d), each scaled down to L2 norm at most `bound`.

        Guarantee: the bound is enforced, not claimed. A row within it is added as it is, one beyond it is scaled to a
        little less, and one that is not finite counts as absent. Norms and sums are taken in float64. They are exact
        for rows of one number that is a multiple of 2^-20, as counts and scores are. For others use a clip, which pays
        for rounding.

        >>> BoundedSum.of_rows(torch.tensor([[0.5], [1.0], [300.0]]), 1.0, Layout(("w",), ((1,),))).value
        tensor([2.5000], dtype=torch.float64)
        """
        rows = rows.double()
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        shrunk = torch.where(norms > bound, bound * (1 - _ROUNDED) / norms, 1.0) * rows
        return cls(torch.where(norms.isfinite(), shrunk, 0.0).sum(dim=0), bound, layout)

    @classmethod
    def of_sensitivity(cls, value: Tensor, sensitivity: float, layout: Layout) -> BoundedSum:
        """A value that need not be a sum, and that leaving out one unit moves by at most `sensitivity` in L2.

        Noise leans on nothing else. Nothing here can check it: whoever calls this proves it.

        >>> BoundedSum.of_sensitivity(torch.tensor([120.0, 80.0]), 1.0, Layout(("counts",), ((2,),))).bound
        1.0
        """
        return cls(value, sensitivity, layout)

    @classmethod
    def from_wire(cls, value: Tensor, bound: float, layout: Layout, *, units: int) -> BoundedSum:
        """A sum that arrived as float32: it was rounded by who sent it.

        Guarantee: rounding moves each number by at most 2^-24 of itself, so a sum of at most `units` vectors of norm
        at most `bound` by `units * bound * 2^-24`, and two neighbours by twice that. The bound is larger by this much.
        What must hold, and nothing here can check: the sender clipped each of its units to `bound`, adds up no more
        than `units` of them, and shares none with another sender.

        >>> BoundedSum.from_wire(torch.zeros(2), 1.0, Layout(("w",), ((2,),)), units=2**20).bound
        1.125
        """
        return cls(value, bound * (1 + 2 * units * _OF_FLOAT32), layout)

    def __repr__(self) -> str:
        return _repr("BoundedSum", self.value, self.layout, f"bound={self.bound}, ")

    def __add__(self, other: BoundedSum) -> BoundedSum:
        self._check_same_bound(other)
        return BoundedSum(add_(self.value.to(torch.float64, copy=True), other.value), self.bound, self.layout)

    def __iadd__(self, other: BoundedSum) -> BoundedSum:
        """The same in this sum's own memory: a step of many micro-batches holds one sum, not one per micro-batch."""
        self._check_same_bound(other)
        return BoundedSum(add_(self.value.double(), other.value), self.bound, self.layout)

    def shifted(self, start: Tensor) -> BoundedSum:
        """The sum plus a vector that none of its units has any influence on, which moves no two neighbours apart."""
        return BoundedSum(add_(self.value.to(torch.float64, copy=True), start), self.bound, self.layout)

    def _check_same_bound(self, other: BoundedSum) -> None:
        if other.bound != self.bound:
            raise UsageError(f"sums with different bounds do not add up: {self.bound} and {other.bound}.")


def add_(total: Tensor, part: Tensor) -> Tensor:
    """Adds to a sum in float64. Torch would copy all of a float32 part first; in pieces, the copies stay in cache."""
    for piece, added in zip(*(torch.split(x, NUMBERS_AT_A_TIME) for x in (total, part)), strict=True):
        piece.add_(added)
    return total


@dataclass(frozen=True)
class Private:
    """A released vector, `undivided` / `divisor`. Whatever is computed from it costs no privacy: it is post-processing.

    `noise_square` is the mean square of the noise in it, for all coordinates or by coordinate, and 0 where nobody says.
    It is as public as the plan, and what learns from releases takes it off.

    >>> Private(torch.tensor([1.0, 3.0]), Layout(("w",), ((2,),))).divide(2).value
    tensor([0.5000, 1.5000])
    """

    undivided: Tensor
    layout: Layout
    noise_square: float | Tensor = field(default=0.0, kw_only=True, repr=False)
    divisor: float = field(default=1.0, kw_only=True)

    @cached_property
    def value(self) -> Tensor:
        """The vector itself. A model is given a quotient without it, in the precision of its parameters."""
        return self.undivided if self.divisor == 1.0 else self.undivided / self.divisor

    def __repr__(self) -> str:
        return _repr("Private", self.undivided, self.layout)

    def divide(self, public_number: float) -> Private:
        """Divided by a number that does not depend on the data: the expected batch size, never the drawn one."""
        validate.positive(public_number=public_number)
        return Private(self.value, self.layout, divisor=public_number)

    def lift(
        self, mapped: Callable[[Tensor], Tensor], layout: Layout | None = None, *, noise_square: float | Tensor = 0.0
    ) -> Private:
        """`mapped` of the value, as a vector of `layout`, or of the layout that it had.

        Guarantee: post-processing. `mapped` is given the released vector, and holds public values and earlier releases
        only. So its result is as private as the release and costs nothing, whether the map is linear or not. Noise is
        not kept track of: after a linear map, the caller knows its mean square and gives it as `noise_square`.

        >>> released = Private(torch.tensor([1.0, 3.0]), Layout(("w",), ((2,),)), noise_square=1.0)
        >>> doubled = released.lift(lambda value: 2 * value, noise_square=4.0)
        >>> doubled.value, doubled.noise_square
        (tensor([2., 6.]), 4.0)
        """
        layout, value = layout or self.layout, mapped(self.value)
        if value.shape != (layout.size,):
            raise UsageError(f"mapped must give a vector of {layout.size} numbers, got one of shape {(*value.shape,)}.")
        return Private(value, layout, noise_square=noise_square)

    def tensors(self) -> dict[str, Tensor]:
        """One tensor per trainable parameter, by name."""
        return self.layout.split(self.value)

    @torch.no_grad()
    def write_to(self, model: nn.Module) -> None:
        """Puts each part into `.grad` of the parameter it belongs to, in place of what was there and in its memory."""
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        if Layout(tuple(trained), tuple(tuple(parameter.shape) for parameter in trained.values())) != self.layout:
            raise UsageError("this gradient belongs to a model with other trainable parameters.")
        for parameter, part in zip(trained.values(), self.layout.split(self.undivided).values(), strict=True):
            if parameter.grad is None or parameter.grad.layout is not torch.strided or parameter.grad.is_inference():
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(part).div_(self.divisor)
