"""Squared norms in float64 of gradients in float32: of matrices, of factors, and from Gram matrices of places.

A computed norm may be larger than the real one. It is smaller by at most `RELATIVE_ERROR`, and by what squares below
2^-126 lose, for which a clip leaves room.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sordino.gradients.rounding import LARGEST_FACTOR, RAISED, of_terms

VALUES_AT_A_TIME = 1 << 10
_SUMS_AT_A_TIME = 1 << 18  # in float64, which a cache holds
LOST_SQUARE = 2.0**-126  # a square below this may underflow: the largest loss per value
_NEGLIGIBLE = 2.0**-20
# Of a norm, which may be a product of two. For each: half of gamma for the squares of a chunk, and other rounding.
RELATIVE_ERROR = 2 * (2.0**-15 + 2.0**-19)


class Lengths(NamedTuple):
    """Squared norms, float64, shape (r,). If places of a row may cancel, also magnitudes: the sum of the places' norms.

    Magnitudes are None if the values that are added are those of which the norm was computed.
    """

    squares: Tensor
    magnitudes: Tensor | None = None


def squared_norms(matrix: Tensor) -> Tensor:
    """The squared norm of each row in float64, from float32 norms of short chunks.

    A float32 sum of n squares has a relative error of at most gamma_n. So the norm of a chunk of 1,024 values is too
    small by at most 2^-15. The float32 norm of ten million values is too small by 4e-4 even for harmless data.
    """
    rows, columns = matrix.shape
    chunks, rest = divmod(columns, VALUES_AT_A_TIME)
    if not chunks:
        norms: Tensor = torch.linalg.vector_norm(matrix, dim=1)
        return norms.double().square_()
    whole = matrix[:, : columns - rest].reshape(rows, chunks, VALUES_AT_A_TIME)
    squares: Tensor = torch.linalg.vector_norm(whole, dim=2).double().square_().sum(dim=1)
    return squares + squared_norms(matrix[:, columns - rest :]) if rest else squares


def squared_norms_of_factor(matrix: Tensor) -> Tensor:
    """Squared norms of a factor of gradients. Small ones are computed in float64: the other factor may be large.

    A factor beyond `LARGEST_FACTOR` counts as infinite, and its row as absent: no error bound of a sum would hold.
    """
    squares = squared_norms(matrix)
    small = (squares < matrix.shape[1] * LOST_SQUARE / _NEGLIGIBLE).nonzero()[:, 0]
    if len(small):
        squares = squares.index_copy(0, small, matrix[small].double().square().sum(dim=1))
    return squares.where(squares <= LARGEST_FACTOR**2, torch.inf)


def gram(vectors: Tensor) -> Tensor:
    """The Gram matrix <v_t, v_u> of the places of each row, shape (r, t, t), in float64, as its terms may cancel."""
    vectors = vectors.double()
    return torch.bmm(vectors, vectors.transpose(1, 2))


def lengths_of_products(one: Tensor, other: Tensor, features: int) -> Lengths:
    """Lengths from two Gram matrices, shape (r, t, t), of vectors that have `features` values together.

    The sum of their products has an error of at most gamma M^2, for M = sum_t |g_t| |x_t| and u = 2^-53. The squared
    norm is raised by this, so that a record of huge values that cancel does not escape the clip. It is raised by at
    least `RAISED`^2 M^2, which also covers the rounding of a sum in float64.
    """
    squares = torch.einsum("rtu,rtu->r", one, other).clamp(min=0)
    of_places = one.diagonal(dim1=1, dim2=2), other.diagonal(dim1=1, dim2=2)
    magnitudes = (of_places[0] * of_places[1]).sqrt().sum(dim=1)
    raised = max(RAISED**2, 2 * of_terms(features + one.shape[1] ** 2, torch.float64))
    trusted = torch.stack([(squares <= LARGEST_FACTOR**2).all(dim=1) for squares in of_places]).all(dim=0)
    return Lengths((squares + raised * magnitudes.square()).where(trusted, torch.inf), magnitudes)


def lengths_of_sums(vectors: Tensor, kinds: Tensor) -> Lengths:
    """Lengths of rows in which the `vectors` [r, t] of a kind add up, each kind in coordinates of its own.

    Vectors are added up in float64. The error of a sum is at most gamma M, for M = sum_t |v_t|, so that a squared norm
    is too small by at most 2 gamma M^2. It is raised by this, and by at least `RAISED`^2 M^2.
    """
    rows, places, features = vectors.shape
    kinds, at_a_time = ranked(kinds), max(1, _SUMS_AT_A_TIME // max(1, places * features))
    squares, magnitudes = (vectors.new_empty(rows, dtype=torch.float64) for _ in range(2))
    for start in range(0, rows, at_a_time):
        some = slice(start, start + at_a_time)
        part = vectors[some].double()
        first = places * torch.arange(len(part), device=part.device)[:, None]  # of each row, in the order of all rows
        sums = part.new_zeros(len(part) * places, features)
        sums.index_add_(0, (kinds[some] + first).flatten(), part.flatten(0, 1))
        of_places = part.square().sum(dim=2)
        trusted = (of_places <= LARGEST_FACTOR**2).all(dim=1)
        squares[some] = sums.view(len(part), -1).square().sum(dim=1).where(trusted, torch.inf)
        magnitudes[some] = of_places.sqrt().sum(dim=1)
    raised = max(RAISED**2, 4 * of_terms(places, torch.float64))
    return Lengths(squares + raised * magnitudes.square(), magnitudes)


def ranked(kinds: Tensor) -> Tensor:
    """For each place, the number of smaller kinds in its row: equal for places of one kind, and below their number."""
    ordered, order = kinds.sort(dim=1)
    is_new = torch.zeros_like(kinds)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.empty_like(kinds).scatter_(1, order, is_new.cumsum(dim=1))


def unit_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their norms, and the norms. A norm below 1e-30 counts as 1e-30."""
    lengths = squared_norms_of_factor(matrix).sqrt().clamp(min=1e-30)
    return matrix / lengths.to(matrix.dtype)[:, None], lengths
