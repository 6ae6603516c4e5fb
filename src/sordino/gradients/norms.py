"""Squared norms in float64 of gradients in float32: of matrices, of factors, and from Gram matrices of places.

A norm may be taken for larger than it is, never for smaller by more than `RELATIVE_ERROR` and by what squares below
2^-126 leave out, which a clip allows for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sordino.gradients.rounding import LARGEST_FACTOR, RAISED, of_terms

_NUMBERS_AT_A_TIME = 1 << 10
LOST_SQUARE = 2.0**-126  # at most, of each number whose square is below it
_NEGLIGIBLE = 2.0**-20
# Of a norm, which may be a product of two: half of gamma for the squares of a piece each, and what is rounded besides.
RELATIVE_ERROR = 2 * (2.0**-15 + 2.0**-19)


class Lengths(NamedTuple):
    """Squared norms, float64, shape (r,); and where places of a row may cancel, the sum of their norms.

    None means that a row is added up as the very numbers its norm was taken of.
    """

    squares: Tensor
    magnitudes: Tensor | None = None


def squared_norms(matrix: Tensor) -> Tensor:
    """The squared norm of each row in float64, from float32 norms of short pieces.

    A float32 sum of n squares is off by at most gamma_n of itself, so that the norm of a piece of 1,024 numbers is too
    small by at most 2^-15; of ten million numbers it is too small by 4e-4 without any ill will.
    """
    rows, numbers = matrix.shape
    pieces, rest = divmod(numbers, _NUMBERS_AT_A_TIME)
    if not pieces:
        norms: Tensor = torch.linalg.vector_norm(matrix, dim=1)
        return norms.double().square_()
    whole = matrix[:, : numbers - rest].reshape(rows, pieces, _NUMBERS_AT_A_TIME)
    squares: Tensor = torch.linalg.vector_norm(whole, dim=2).double().square_().sum(dim=1)
    return squares + squared_norms(matrix[:, numbers - rest :]) if rest else squares


def squared_norms_of_factor(matrix: Tensor) -> Tensor:
    """Squared norms of a factor of gradients, where what vanishes in float32 matters: the other may be large.

    A factor that is larger than any sum can be trusted with counts as infinite, and its row as absent.
    """
    squares = squared_norms(matrix)
    small = (squares < matrix.shape[1] * LOST_SQUARE / _NEGLIGIBLE).nonzero()[:, 0]
    if len(small):
        squares = squares.index_copy(0, small, matrix[small].double().square().sum(dim=1))
    return squares.where(squares <= LARGEST_FACTOR**2, torch.inf)


def gram(vectors: Tensor) -> Tensor:
    """<v_t, v_u> for all places of each row, shape (r, t, t). In float64, because what is summed of it may cancel."""
    vectors = vectors.double()
    return torch.bmm(vectors, vectors.transpose(1, 2))


def lengths_of_products(one: Tensor, other: Tensor, features: int) -> Lengths:
    """From two Gram matrices, shape (r, t, t), of vectors with `features` numbers together.

    The sum of their products is off by at most gamma of M^2 for M = sum_t |g_t| |x_t| and u = 2^-53. It is raised by
    that, and so a record of huge numbers that cancel does not escape the clip; and by so much more that what a sum in
    float64 leaves of M is covered as well.
    """
    squares = torch.einsum("rtu,rtu->r", one, other).clamp(min=0)
    of_places = one.diagonal(dim1=1, dim2=2), other.diagonal(dim1=1, dim2=2)
    magnitudes = (of_places[0] * of_places[1]).sqrt().sum(dim=1)
    raised = max(RAISED**2, 2 * of_terms(features + one.shape[1] ** 2, torch.float64))
    trusted = torch.stack([(squares <= LARGEST_FACTOR**2).all(dim=1) for squares in of_places]).all(dim=0)
    return Lengths((squares + raised * magnitudes.square()).where(trusted, torch.inf), magnitudes)


def unit_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths, and the lengths; those near zero count as 1e-30."""
    lengths = squared_norms_of_factor(matrix).sqrt().clamp(min=1e-30)
    return matrix / lengths.to(matrix.dtype)[:, None], lengths
