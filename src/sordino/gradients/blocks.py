"""Blocks: the gradients of some rows by one parameter, in the form that makes norms and weighted sum cheapest.

There are three forms, and shapes decide which one is used:

* a closed form, which never holds a gradient per row (`Outer`);
* a Gram matrix of places, which gives the norms, while the sum is that of plain training (`GramProducts`);
* gradients formed row by row, from which norms and sum are both computed (`Products`, `DenseBlock`).

"Formed" means held in memory as a matrix with one gradient per row. A "place" is a position within a row: a token, a
pixel, a time step.
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

# Measured costs, relative to one multiplication in a plain matrix product: a multiplication in a batch of small
# products, a value that is written once and read twice, a multiplication in a small product in float64, and a value
# that is read, added and written.
_BATCHED, _FORMED, _SMALL, _ADDED = 1.2, 30, 3.0, 110


def gram_is_cheaper(
    *, places: int, size: int, features: int, pixels: int = 0, channels: int = 0, shifts: int = 1
) -> bool:
    """Whether norms from a Gram matrix and the sum of plain training cost less than formed gradients.

    `size` is that of the parameter. Each pair of `places` costs `features` multiplications and `shifts` additions, and
    each pair of the `pixels` of an image costs `channels` multiplications.
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
        """Whether `formed` holds one gradient per row, so that only a few rows should be formed at a time."""
        return False

    @property
    def numbers_formed(self) -> int:
        """The number of values held for each row while it is formed."""
        return self.size

    def formed(self, room: Tensor | None = None) -> Block:
        """These gradients, ready for norms and sums. They may be written to `room`, a flat tensor of their size."""
        return self

    def of_units(self, starts: tuple[int, ...]) -> Block:
        """Gradients with one row per unit: the sum of the adjacent rows `starts[u]` to `starts[u + 1]`."""
        return OfUnits(self, starts)

    @abstractmethod
    def take(self, rows: slice) -> Block:
        """A slice of the rows."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """Squared norms, float64, shape (r,)."""

    def lengths(self) -> Lengths:
        """Squared norms, and for rows whose places may cancel the magnitudes that a sum needs (see `Lengths`)."""
        return Lengths(self.squared_norms())

    @property
    def tolerances(self) -> int:
        """The number of sums in which places may cancel. Each has a rounding error of its own."""
        return 0

    def present(self, rows: Tensor) -> Block:
        """These gradients with exact zeros in the rows where `rows` is False. A factor 0 would leave NaN as NaN."""
        return DenseBlock(zero_unless(rows, self.dense()))

    @abstractmethod
    def add_to(self, total: Tensor, weights: Tensor) -> None:
        """Adds the sum over rows of weight times gradient to `total`, shape (size,)."""

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        """Adds the weighted sum to `total`, which holds zeros, with the error bound of the theorem in `rounding`.

        Rows are added up in groups, so that a row affects the rounding of few others. Where places may cancel, the
        rounding error of a group is at most `tolerance`.
        """
        add_in_groups(total, len(weights), TOGETHER, lambda part, rows: self.take(rows).add_to(part, weights[rows]))

    def add_as_held(self, total: Tensor, weights: Tensor) -> None:
        """Adds the weighted sum to a `total` in the memory order of the gradients. Call `in_order` on the final one."""
        self.add_to(total, weights)

    def in_order(self, total: Tensor) -> Tensor:
        """Converts a sum made by `add_as_held` to the order of the parameter."""
        return total

    @abstractmethod
    def dense(self) -> Tensor:
        """The gradients themselves, shape (r, size). They define all other methods."""

    def masked(self, keep: Tensor) -> Block:
        """These gradients with zeros where `keep`, shape (size,), is False."""
        return MaskedBlock(self, keep, self.laid_out(keep))

    def laid_out(self, keep: Tensor) -> Tensor:
        """`keep` in the layout that `masked_` of formed gradients needs. It is computed once for all rows."""
        return keep

    def masked_(self, laid_out: Tensor) -> Block:
        """Masks gradients that were formed for one use, in place if they are in memory."""
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
    """Gradients of rank one, never formed: row `r` is the outer product of `left[r]` and `right[r]`.

    Its norm is the product of the two norms, and the sum over rows is one matrix product, as in plain training.
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
        if left.shape[1] < right.shape[1]:  # scale a copy of the narrower factor
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
    """Gradients of rank one with zeros outside a mask M. Squared norms are (g * g)^T M (x * x), one matrix product."""

    outer: Outer
    mask: Tensor

    @property
    def size(self) -> int:
        return self.outer.size

    def take(self, rows: slice) -> MaskedOuter:
        return MaskedOuter(self.outer.take(rows), self.mask)

    def squared_norms(self) -> Tensor:
        """Squared norms from factors of length one, so that no square overflows.

        A square that underflows in float32 counts as the smallest normal one. A norm may be overestimated, but never
        underestimated: otherwise, a record with one huge value under the mask would escape the clip.
        """
        (g, g_length), (x, x_length) = (unit_rows(factor) for factor in (self.outer.left, self.outer.right))
        underflow = self.size * 4 * torch.finfo(torch.float32).tiny
        kept = ((g.square_() @ self.mask) * x.square_()).sum(dim=1, dtype=torch.float64) + underflow
        margin = 1 + 2 * of_terms(g.shape[1] + 8, g.dtype)  # no term is negative, so the relative error is bounded
        return margin * kept * (g_length * x_length).square()

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
    """Gradients formed when needed: row `r` is the sum over places t of the outer products of left and right [r, t].

    Forming them takes as many multiplications as the weight gradient of plain training.
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
        """If all units have equally many rows, the places of all rows of a unit become places of one row."""
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
    """Gradients that are sums over places of a row and never formed.

    Places of a row may cancel. The rounding error of a sum is bounded by their magnitudes, not by the row's norm, so
    `add_bounded` computes a bound on the error first, and uses float64 where it is too large.
    """

    @property
    def tolerances(self) -> int:
        return 1

    @property
    @abstractmethod
    def places(self) -> int:
        """The number of terms that one row adds to a coordinate of the sum."""

    @abstractmethod
    def doubled(self, rows: slice) -> Block:
        """A slice of the rows in float64."""

    @abstractmethod
    def to_be_formed(self) -> Block:
        """These gradients as a block that is formed row by row."""

    @abstractmethod
    def lengths(self) -> Lengths: ...

    def squared_norms(self) -> Tensor:
        return self.lengths().squares

    def add_bounded(self, total: Tensor, weights: Tensor, lengths: Lengths, tolerance: float) -> None:
        """Adds each group in float32 if its rounding error is within the tolerance, otherwise in float64."""
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
        """The bound gamma_n sum_a w_a M_a of each group, by its first row. Absent rows have been set to zero."""
        assert lengths.magnitudes is not None
        weighted = torch.where(weights > 0, weights.double() * lengths.magnitudes, 0.0).tolist()
        slices = groups(len(weighted), together)
        return {
            rows.start: of_terms((rows.stop - rows.start) * self.places, dtype) * sum(weighted[rows]) for rows in slices
        }


@dataclass(frozen=True, repr=False)
class GramProducts(OfPlaces, Products):
    """Sums of outer products, never formed: |sum_t g_t x_t^T|^2 = sum_{t,u} <g_t, g_u> <x_t, x_u>."""

    @property
    def is_formed_later(self) -> bool:
        return False

    def masked(self, keep: Tensor) -> Block:
        return self.to_be_formed().masked(keep)  # a mask needs each coordinate

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
    """Products of factors in half precision, multiplied in half precision and held in full precision.

    Norms and sum are both computed from the rounded products, so that the clip bounds what is added. The sum of plain
    training would differ from the sum of these gradients by their rounding errors.
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
    """`values` with exact zeros in the rows where the mask `rows` is False."""
    return torch.where(rows.reshape(-1, *[1] * (values.ndim - 1)), values, values.new_zeros(()))


def weight_block(g: Tensor, x: Tensor) -> Block:
    """The gradients sum_t g[r, t, o] x[r, t, i], in the cheapest form."""
    places, outputs, inputs, dtype = g.shape[1], g.shape[2], x.shape[2], held_in(g.dtype)
    if places == 1:
        return Outer(g[:, 0].to(dtype), x[:, 0].to(dtype))
    if gram_is_cheaper(places=places, size=outputs * inputs, features=outputs + inputs):
        return GramProducts(g.to(dtype), x.to(dtype))
    return Products(g, x) if g.dtype == dtype else RoundedProducts(g, x)


def held_in(dtype: torch.dtype) -> torch.dtype:
    """The precision in which gradients are held whose factors have this `dtype`."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def write_products(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Writes left[k] times right[k] for all k to `out`, whose precision may be higher than that of the factors."""
    if out.dtype == left.dtype:
        return torch.bmm(left, right, out=out)
    return out.copy_(torch.bmm(left, right))


def equal_rows(starts: tuple[int, ...]) -> int:
    """The number of rows of each unit, or 0 if units differ."""
    counts = {end - start for start, end in pairwise(starts)}
    return counts.pop() if len(counts) == 1 else 0


class FormedLater(Block):
    """Base of gradients that are formed as a matrix for every purpose."""

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
    """The factors, shape (r, t, o) and (r, t, i), if gradients are sums of outer products over places, or None."""
    if isinstance(block, Outer):
        return block.left[:, None], block.right[:, None]
    return (block.left, block.right) if isinstance(block, Products) else None


@dataclass(frozen=True, repr=False)
class Several(FormedLater):
    """Gradients by a parameter that several operations use: the sum over its uses, formed as a matrix."""

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
    """Gradients of any form with zeros outside a mask, formed when needed."""

    block: Block
    keep: Tensor
    laid_out_once: Tensor

    @property
    def size(self) -> int:
        return self.block.size

    def take(self, rows: slice) -> MaskedBlock:
        return replace(self, block=self.block.take(rows))

    def formed(self, room: Tensor | None = None) -> Block:
        """Masks gradients while they are in cache. NaN under the mask stays NaN, and its row counts as absent."""
        is_later = self.block.is_formed_later
        return self.block.formed(room).masked_(self.laid_out_once) if is_later else DenseBlock(self.dense())

    def dense(self) -> Tensor:
        return torch.where(self.keep, self.block.dense(), 0.0)

    def masked(self, keep: Tensor) -> Block:
        return self.block.masked(self.keep & keep)


@dataclass(frozen=True, repr=False)
class OfUnits(FormedLater):
    """Gradients with one row per privacy unit: the sum of the adjacent rows `starts[u]` to `starts[u + 1]`."""

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
