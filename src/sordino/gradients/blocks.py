"""The gradients of some rows by one parameter, in whatever form makes their norms and their weighted sum cheapest.

There are three: a closed form that never holds a gradient per row; a Gram matrix of places, from which the norms follow
while the sum is the one of plain training; and gradients formed row by row, which then serve both. Shapes decide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from sordino.gradients.norms import (
    Lengths,
    gram,
    lengths_of_products,
    squared_norms,
    squared_norms_of_factor,
    unit_rows,
)
from sordino.gradients.rounding import TOGETHER, add_in_groups, groups, of_terms, rows_together

# What was measured, in multiplications of a plain matrix product: a batch of small products against one large one, a
# number that is written once and read twice, a small product in float64, a number that is read, added and written.
_BATCHED, _FORMED, _SMALL, _ADDED = 1.2, 30, 3.0, 110


def gram_is_cheaper(
    *, places: int, size: int, features: int, pixels: int = 0, channels: int = 0, shifts: int = 1
) -> bool:
    """Whether norms from a Gram matrix and the sum of plain training cost less than gradients that are formed.

    `size` is that of the parameter. Each pair of the `places` costs `features` multiplications and `shifts` additions,
    and each pair of the `pixels` of a picture `channels` multiplications.
    """
    formed = _BATCHED * places * size + _FORMED * size
    gram = places * size + _SMALL * (places**2 * features + pixels**2 * channels) + _ADDED * shifts * places**2
    return gram < formed


class Block(ABC):
    """Gradients of rows by one parameter. `size` is the number of its coordinates."""

    @property
    @abstractmethod
    def size(self) -> int: ...

    @property
    def is_formed_later(self) -> bool:
        """Whether `formed` has to hold a gradient per row, so that it pays to take a few rows at a time."""
        return False

    @property
    def numbers_formed(self) -> int:
        """How many numbers are held for each row while it is formed."""
        return self.size

    def formed(self, room: Tensor | None = None) -> Block:
        """The same gradients, ready for norms and sums. They may be held in `room`, a flat tensor of their size."""
        return self

    def of_units(self, starts: tuple[int, ...]) -> Block:
        """A row per unit: the sum of the rows `starts[u]` to `starts[u + 1]`, which lie together."""
        return OfUnits(self, starts)

    @abstractmethod
    def take(self, rows: slice) -> Block:
        """Some of the rows."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Float64, shape (r,)."""

    def lengths(self) -> Lengths:
        """Squared norms, and what a sum has to know besides of rows whose places may cancel."""
        return Lengths(self.squared_norms())

    @property
    def tolerances(self) -> int:
        """How many sums there are in which places may cancel, each with a rounding of its own."""
        return 0

    def present(self, rows: Tensor) -> Block:
        """These gradients with exact zeros for the rows that are False: 0 * NaN would be NaN."""
        return DenseBlock(zero_unless(rows, self.dense()))

    @abstractmethod
    def add_to(self, total: Tensor, weights: Tensor) -> None:
        """Adds the sum over rows of weight times gradient to `total`, shape (size,)."""

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        """Adds the weighted sum to zeros so that a row moves the rounding of few others (theorem in `rounding`).

        Where places may cancel, the rounding of a group of rows is at most `tolerance`.
        """
        add_in_groups(total, len(weights), TOGETHER, lambda part, rows: self.take(rows).add_to(part, weights[rows]))

    def add_as_held(self, total: Tensor, weights: Tensor) -> None:
        """The same for a `total` in the order in which the gradients are held: `in_order` ends such a sum."""
        self.add_to(total, weights)

    def in_order(self, total: Tensor) -> Tensor:
        """A sum that was added up as the gradients are held, in the order of the parameter."""
        return total

    @abstractmethod
    def dense(self) -> Tensor:
        """The gradients themselves, shape (r, size): the definition of everything else here."""

    def masked(self, keep: Tensor) -> Block:
        """The same with zeros where `keep`, shape (size,), is False."""
        return MaskedBlock(self, keep, self.laid_out(keep))

    def laid_out(self, keep: Tensor) -> Tensor:
        """`keep` as `masked_` of what `formed` gives wants it: laid out once for all rows, not for a few at a time."""
        return keep

    def masked_(self, laid_out: Tensor) -> Block:
        """The same of gradients that were formed to be used once, in their own memory where they have any."""
        return DenseBlock(torch.where(laid_out, self.dense(), 0.0))


@dataclass(frozen=True, repr=False)
class DenseBlock(Block):
    """Gradients as a matrix."""

    matrix: Tensor

    @property
    def size(self) -> int:
        return self.matrix.shape[1]

    def take(self, rows: slice) -> DenseBlock:
        return DenseBlock(self.matrix[rows])

    def squared_norms(self) -> Tensor:
        return squared_norms(self.matrix)

    def present(self, rows: Tensor) -> DenseBlock:
        return DenseBlock(zero_unless(rows, self.matrix))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        total.addmv_(self.matrix.T, weights)

    def dense(self) -> Tensor:
        return self.matrix

    def masked(self, keep: Tensor) -> DenseBlock:
        return DenseBlock(torch.where(keep, self.matrix, 0.0))

    def masked_(self, laid_out: Tensor) -> DenseBlock:
        self.matrix.mul_(laid_out)
        return self

    def of_units(self, starts: tuple[int, ...]) -> Block:
        rows = equal_rows(starts)
        return DenseBlock(self.matrix.reshape(-1, rows, self.size).sum(dim=1)) if rows else super().of_units(starts)


@dataclass(frozen=True, repr=False)
class Outer(Block):
    """Gradients of rank one: row `r` is the outer product of `left[r]` and `right[r]`, never formed.

    Its norm is the product of the norms, and the sum over rows is one matrix product, as in plain training.
    """

    left: Tensor
    right: Tensor

    @property
    def size(self) -> int:
        return self.left.shape[1] * self.right.shape[1]

    def take(self, rows: slice) -> Outer:
        return Outer(self.left[rows], self.right[rows])

    def squared_norms(self) -> Tensor:
        return squared_norms_of_factor(self.left) * squared_norms_of_factor(self.right)

    def present(self, rows: Tensor) -> Outer:
        return Outer(zero_unless(rows, self.left), zero_unless(rows, self.right))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        left, right = self.left, self.right
        if left.shape[1] < right.shape[1]:  # the narrower factor is the one to copy
            left = weights[:, None] * left
        else:
            right = weights[:, None] * right
        total.view(left.shape[1], -1).addmm_(left.T, right)

    def dense(self) -> Tensor:
        return torch.einsum("ro,ri->roi", self.left, self.right).flatten(1)

    def of_units(self, starts: tuple[int, ...]) -> Block:
        return Products(self.left[:, None], self.right[:, None]).of_units(starts)

    def masked(self, keep: Tensor) -> MaskedOuter:
        return MaskedOuter(self, keep.reshape(self.left.shape[1], -1).to(self.left.dtype))


@dataclass(frozen=True, repr=False)
class MaskedOuter(Block):
    """Gradients of rank one with zeros outside a mask: the squared norm is (g * g)^T M (x * x), one matrix product."""

    outer: Outer
    mask: Tensor

    @property
    def size(self) -> int:
        return self.outer.size

    def take(self, rows: slice) -> MaskedOuter:
        return MaskedOuter(self.outer.take(rows), self.mask)

    def squared_norms(self) -> Tensor:
        """Both factors are scaled to length one, so that no square overflows.

        A square that vanishes in float32 counts as the smallest one that does not: a norm may be taken for larger than
        it is, never for smaller, or a record with one huge number under the mask would escape the clip.
        """
        (g, g_length), (x, x_length) = (unit_rows(factor) for factor in (self.outer.left, self.outer.right))
        vanished = self.size * 4 * torch.finfo(torch.float32).tiny
        shares = ((g.square_() @ self.mask) * x.square_()).sum(dim=1, dtype=torch.float64) + vanished
        raised = 1 + 2 * of_terms(g.shape[1] + 8, g.dtype)  # no term is negative: the sum is off by a share of itself
        return raised * shares * (g_length * x_length).square()

    def present(self, rows: Tensor) -> MaskedOuter:
        return MaskedOuter(self.outer.present(rows), self.mask)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        partial = torch.zeros_like(total)
        self.outer.add_to(partial, weights)
        total.addcmul_(partial, self.mask.flatten())

    def dense(self) -> Tensor:
        return self.outer.dense() * self.mask.flatten()

    def masked(self, keep: Tensor) -> MaskedOuter:
        return MaskedOuter(self.outer, self.mask * keep.reshape(self.mask.shape))


@dataclass(frozen=True, repr=False)
class Products(Block):
    """Row `r` is the sum over places of the outer products of `left[r, t]` and `right[r, t]`, formed when needed.

    As many multiplications as plain training has.
    """

    left: Tensor
    right: Tensor

    @property
    def size(self) -> int:
        return self.left.shape[2] * self.right.shape[2]

    @property
    def is_formed_later(self) -> bool:
        return True

    def formed(self, room: Tensor | None = None) -> Block:
        if room is None:
            return DenseBlock(self.dense())
        rows, _, outputs = self.left.shape
        out = room.view(rows, outputs, -1)
        return DenseBlock(write_products(self.left.transpose(1, 2), self.right, out).flatten(1))

    def of_units(self, starts: tuple[int, ...]) -> Block:
        """The places of rows of one unit are places of the unit, if all units have as many."""
        rows = equal_rows(starts)
        if not rows:
            return super().of_units(starts)
        places = rows * self.left.shape[1]
        return weight_block(*(side.reshape(-1, places, side.shape[2]) for side in (self.left, self.right)))

    def take(self, rows: slice) -> Products:
        return Products(self.left[rows], self.right[rows])

    def present(self, rows: Tensor) -> Products:
        return replace(self, left=zero_unless(rows, self.left), right=zero_unless(rows, self.right))

    def laid_out(self, keep: Tensor) -> Tensor:
        return keep.to(held_in(self.left.dtype))

    def squared_norms(self) -> Tensor:
        return self.formed().squared_norms()

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        weighted = weights[:, None, None] * self.left
        total.view(self.left.shape[2], -1).addmm_(weighted.flatten(0, 1).T, self.right.flatten(0, 1))

    def dense(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right).flatten(1)


class OfPlaces(Block):
    """Gradients that are sums over places of a row and never formed: what cancels in them, a sum may round."""

    @property
    def tolerances(self) -> int:
        return 1

    @property
    @abstractmethod
    def places(self) -> int:
        """How many terms of one row may meet in one number of the sum."""

    @abstractmethod
    def doubled(self, rows: slice) -> Block:
        """Some of the rows in float64."""

    @abstractmethod
    def to_be_formed(self) -> Block:
        """These gradients, formed row by row."""

    @abstractmethod
    def lengths(self) -> Lengths: ...

    def squared_norms(self) -> Tensor:
        return self.lengths().squares

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        """Each group in float32 if its rounding is within the tolerance, or else in float64."""
        together = rows_together(self.places)
        errors = self._errors(weights, lengths, together, total.dtype)

        def add(part: Tensor, rows: slice) -> None:
            if errors[rows.start] <= tolerance:
                self.take(rows).add_to(part, weights[rows])
            else:
                exact = part.double()
                self.doubled(rows).add_to(exact, weights[rows].double())
                part.copy_(exact)

        add_in_groups(total, len(weights), together, add)

    def _errors(self, weights: Tensor, lengths: Lengths, together: int, dtype: torch.dtype) -> dict[int, float]:
        """gamma_n sum_a w_a M_a of each group, by its first row. Absent rows hold zeros by now."""
        assert lengths.magnitudes is not None
        weighed = torch.where(weights > 0, weights.double() * lengths.magnitudes, 0.0).tolist()
        slices = groups(len(weighed), together)
        return {
            rows.start: of_terms((rows.stop - rows.start) * self.places, dtype) * sum(weighed[rows]) for rows in slices
        }


@dataclass(frozen=True, repr=False)
class GramProducts(OfPlaces, Products):
    """The same, never formed: |sum_t g_t x_t^T|^2 = sum_{t,u} <g_t, g_u> <x_t, x_u>."""

    @property
    def is_formed_later(self) -> bool:
        return False

    def masked(self, keep: Tensor) -> Block:
        return self.to_be_formed().masked(keep)  # a mask has to see each number

    def formed(self, room: Tensor | None = None) -> Block:
        return self

    def take(self, rows: slice) -> GramProducts:
        return GramProducts(self.left[rows], self.right[rows])

    @property
    def places(self) -> int:
        return self.left.shape[1]

    def doubled(self, rows: slice) -> GramProducts:
        return GramProducts(self.left[rows].double(), self.right[rows].double())

    def to_be_formed(self) -> Products:
        return Products(self.left, self.right)

    def lengths(self) -> Lengths:
        return lengths_of_products(gram(self.left), gram(self.right), self.left.shape[2] + self.right.shape[2])


@dataclass(frozen=True, repr=False)
class RoundedProducts(Products):
    """The same of factors in half precision, multiplied in it and held in full precision.

    Norms and sum are both of the rounded products, so that the clip bounds what is added. The sum of plain training
    would not be that of these gradients, but off by their rounding.
    """

    def take(self, rows: slice) -> RoundedProducts:
        return RoundedProducts(self.left[rows], self.right[rows])

    def formed(self, room: Tensor | None = None) -> DenseBlock:
        rows, _, outputs = self.left.shape
        room = self.left.new_empty(rows * self.size, dtype=held_in(self.left.dtype)) if room is None else room
        out = room.view(rows, outputs, -1)
        return DenseBlock(write_products(self.left.transpose(1, 2), self.right, out).flatten(1))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        self.formed().add_to(total, weights)

    def dense(self) -> Tensor:
        return self.formed().matrix


def zero_unless(rows: Tensor, values: Tensor) -> Tensor:
    return torch.where(rows.reshape(-1, *[1] * (values.ndim - 1)), values, values.new_zeros(()))


def weight_block(g: Tensor, x: Tensor) -> Block:
    """sum_t g[r, t, o] x[r, t, i] in the cheapest form."""
    places, outputs, inputs, dtype = g.shape[1], g.shape[2], x.shape[2], held_in(g.dtype)
    if places == 1:
        return Outer(g[:, 0].to(dtype), x[:, 0].to(dtype))
    if gram_is_cheaper(places=places, size=outputs * inputs, features=outputs + inputs):
        return GramProducts(g.to(dtype), x.to(dtype))
    return Products(g, x) if g.dtype == dtype else RoundedProducts(g, x)


def held_in(dtype: torch.dtype) -> torch.dtype:
    """The precision of gradients whose factors have this one."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def write_products(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left[k] times right[k] for all k, into `out`, whose precision may be higher than that of the factors."""
    if out.dtype == left.dtype:
        return torch.bmm(left, right, out=out)
    return out.copy_(torch.bmm(left, right))


def equal_rows(starts: tuple[int, ...]) -> int:
    """How many rows each unit has, or 0 where they differ."""
    counts = {end - start for start, end in pairwise(starts)}
    return counts.pop() if len(counts) == 1 else 0


class FormedLater(Block):
    """Gradients that only a matrix can hold: whatever is asked of them is asked of it."""

    @property
    def is_formed_later(self) -> bool:
        return True

    def formed(self, room: Tensor | None = None) -> Block:
        return DenseBlock(self.dense())

    def squared_norms(self) -> Tensor:
        return self.formed().squared_norms()

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        self.formed().add_to(total, weights)


def places_of(block: Block) -> tuple[Tensor, Tensor] | None:
    """The two factors, shape (r, t, o) and (r, t, i), of gradients that are sums of outer products over places."""
    if isinstance(block, Outer):
        return block.left[:, None], block.right[:, None]
    return (block.left, block.right) if isinstance(block, Products) else None


@dataclass(frozen=True, repr=False)
class Several(FormedLater):
    """A parameter that is used in several ways: the sum of what its uses add, which only a matrix can hold."""

    uses: tuple[Block, ...]

    @property
    def size(self) -> int:
        return self.uses[0].size

    def take(self, rows: slice) -> Several:
        return Several(tuple(use.take(rows) for use in self.uses))

    def dense(self) -> Tensor:
        total = self.uses[0].dense().clone()
        for use in self.uses[1:]:
            total += use.dense()
        return total


@dataclass(frozen=True, repr=False)
class MaskedBlock(FormedLater):
    """Any gradients with zeros outside a mask, formed when needed."""

    block: Block
    keep: Tensor
    laid_out_once: Tensor

    @property
    def size(self) -> int:
        return self.block.size

    def take(self, rows: slice) -> MaskedBlock:
        return replace(self, block=self.block.take(rows))

    def formed(self, room: Tensor | None = None) -> Block:
        """Masked while they are in cache. Under the mask NaN stays NaN, and its row counts as absent."""
        later = self.block.is_formed_later
        return self.block.formed(room).masked_(self.laid_out_once) if later else DenseBlock(self.dense())

    def dense(self) -> Tensor:
        return torch.where(self.keep, self.block.dense(), 0.0)

    def masked(self, keep: Tensor) -> Block:
        return self.block.masked(self.keep & keep)


@dataclass(frozen=True, repr=False)
class OfUnits(FormedLater):
    """A row per privacy unit: the sum of the physical rows `starts[u]` to `starts[u + 1]`, which lie together."""

    block: Block
    starts: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.block.size

    @property
    def numbers_formed(self) -> int:
        return self.size * max(1, *(end - start for start, end in pairwise(self.starts)))

    def take(self, rows: slice) -> OfUnits:
        first, last, _ = rows.indices(len(self.starts) - 1)
        starts = self.starts[first : last + 1]
        block = self.block.take(slice(starts[0], starts[-1]))
        return OfUnits(block, tuple(start - starts[0] for start in starts))

    def dense(self) -> Tensor:
        dense = self.block.dense()
        counts = torch.tensor([b - a for a, b in pairwise(self.starts)], device=dense.device)
        units = torch.repeat_interleave(torch.arange(len(counts), device=dense.device), counts)
        return dense.new_zeros(len(counts), self.size).index_add_(0, units, dense)
