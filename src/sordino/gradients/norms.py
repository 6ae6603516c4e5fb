"""Squared norms in float64 of gradients in float32: of matrices, of factors, and from Gram matrices of places.

A norm may be taken for larger than it is, never for smaller by more than the rounding that a clip allows for.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NUMBERS_AT_A_TIME = 1 << 14
_SMALL_SQUARE = 1e-30
_ROUNDING = 2.0**-22  # of a sum in float32, relative to the sum of the sizes of what is added


def squared_norms(matrix: Tensor) -> Tensor:
    """The squared norm of each row in float64, from float32 norms of short pieces.

    A float32 norm of ten million numbers is off by 4e-4; of 16,384 it is off by about 1e-6, at the price of no copy.
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
    """The same of a factor of gradients, where what vanishes in float32 matters: the other factor may be large."""
    squares = squared_norms(matrix)
    small = (squares < _SMALL_SQUARE).nonzero()[:, 0]
    return squares.index_copy(0, small, matrix[small].double().square().sum(dim=1)) if len(small) else squares


def gram(vectors: Tensor) -> Tensor:
    """<v_t, v_u> for all places of each row, shape (r, t, t). In float64, because what is summed of it may cancel."""
    vectors = vectors.double()
    return torch.bmm(vectors, vectors.transpose(1, 2))


def sum_of_products(one: Tensor, other: Tensor) -> Tensor:
    """Of two Gram matrices, shape (r, t, t): a squared norm per row.

    The sum that goes with it is taken in float32, and where places cancel leaves a rounding of what cancelled. The norm
    is raised by as much, or a record of huge numbers that cancel would escape the clip.
    """
    norms = torch.einsum("rtu,rtu->r", one, other).clamp(min=0).sqrt()
    magnitudes = (one.diagonal(dim1=1, dim2=2) * other.diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt().sum(dim=1)
    return (norms + _ROUNDING * magnitudes).square()


def unit_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their lengths, and the lengths; those near zero count as 1e-30."""
    lengths = squared_norms_of_factor(matrix).sqrt().clamp(min=1e-30)
    return matrix / lengths.to(matrix.dtype)[:, None], lengths
