"""A convolution as equations for its input: what its output says (W x = out), and what its gradient says (K x = g).

Zhu and Blaschko (2021), equations 11 to 15. They have a third kind, P x = 0 for padding; here padding is no unknown, so
it needs no equation. K is the same small matrix for each channel of the input: entry (c, c', u, v) of the gradient is
the sum over places p of k[c, p] x[c', stride p + (u, v)].
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def output_matrix(layer: nn.Conv2d, size: tuple[int, int]) -> Tensor:
    """W, shape (outputs, inputs), of a layer without a bias whose input has so many pixels.

    >>> layer = nn.Conv2d(1, 1, 2, bias=False).double()
    >>> output_matrix(layer, (2, 2)).shape
    torch.Size([1, 4])
    """
    unknowns = layer.in_channels * size[0] * size[1]
    units = torch.eye(unknowns, dtype=layer.weight.dtype).reshape(unknowns, layer.in_channels, *size)
    with torch.no_grad():
        return torch.cat([layer(part).flatten(1) for part in torch.split(units, 256)]).T


def gradient_matrix(layer: nn.Conv2d, back: Tensor, size: tuple[int, int]) -> Tensor:
    """K of one channel of the input, shape (outputs * kernel, height * width), rows in the order of the gradient's.

    `back` is the gradient of the loss by the output of the layer, shape (1, outputs, height, width).
    """
    pixels = size[0] * size[1]
    units = torch.eye(pixels, dtype=back.dtype).reshape(1, pixels, *size)  # each pixel as a channel of its own
    kernel = layer.kernel_size
    patches = F.unfold(units, kernel, padding=layer.padding, stride=layer.stride)  # type: ignore[arg-type]
    patches = patches.reshape(pixels, kernel[0] * kernel[1], -1)  # pixel, kernel place, output place
    return torch.einsum("cp,xkp->ckx", back[0].flatten(1), patches).reshape(-1, pixels)


@dataclass(frozen=True)
class Solved:
    """The input of a convolution, and the share of the right side, in square, that it leaves unexplained."""

    inputs: Tensor = field(repr=False)
    misfit: float


def solved(
    layer: nn.Conv2d, size: tuple[int, int], back: Tensor, gradient: Tensor, kept: Tensor, out: Tensor
) -> Solved:
    """The input that fits gradient and output best, by least squares. NaN in `out`, and what was not kept, say nothing.

    Equations by the gradient are scaled to the size of the others: as they are, rounding would drown them. The normal
    equations are used, because K fills only the blocks of its channels there; float64 has the digits that this costs.
    """
    by_output, known = output_matrix(layer, size), ~out.flatten().isnan()
    by_gradient = gradient_matrix(layer, back, size)
    scale = _size(by_output) / _size(by_gradient)
    rows, right = by_output[known], out.flatten()[known]
    normal, moment, square = rows.T @ rows, rows.T @ right, float(right @ right)
    pixels = size[0] * size[1]
    for channel in range(layer.in_channels):
        sent, place = kept[:, channel].flatten(), slice(channel * pixels, (channel + 1) * pixels)
        block, values = scale * by_gradient[sent], scale * gradient[:, channel].flatten()[sent]
        normal[place, place] += block.T @ block
        moment[place] += block.T @ values
        square += float(values @ values)
    inputs = _solution(normal, moment)
    misfit = square - float(inputs @ moment)  # ||A x - b||^2 at its minimum
    return Solved(inputs.reshape(1, layer.in_channels, *size), misfit / (square or 1.0))


def _solution(normal: Tensor, moment: Tensor) -> Tensor:
    """By Cholesky's factors, or the smallest answer where there are too few equations."""
    factor, failed = torch.linalg.cholesky_ex(normal)
    column = moment[:, None]
    found: Tensor = (
        torch.linalg.lstsq(normal, column, driver="gelsd").solution if failed else torch.cholesky_solve(column, factor)
    )
    return found.squeeze(1)


def _size(matrix: Tensor) -> float:
    """The root mean square length of a column, never zero."""
    return float(torch.linalg.matrix_norm(matrix)) / float(matrix.shape[1]) ** 0.5 or 1.0
