"""R-GAP: reconstructs an image from its gradient, layer by layer (Zhu and Blaschko 2021).

A convolution as equations for its input: what its output says (W x = out), and what its gradient says (K x = g).

Zhu and Blaschko (2021), equations 11 to 15. They have a third kind, P x = 0 for padding; here padding is no unknown, so
it needs no equation. K is the same small matrix for each channel of the input: entry (c, c', u, v) of the gradient is
the sum over places p of k[c, p] x[c', stride p + (u, v)].

R-GAP: a picture from its gradient, layer by layer from the last to the first (Zhu and Blaschko 2021).

The network has no biases, activations that can be undone, and a logistic loss. The last layer's weights w and their
gradient g give <g, w> = -u / (1 + e^u) with u = y f, hence the loss's derivative, hence the layer's input; every
convolution below is a system of linear equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from torch import Tensor, nn

from sordino.attacks.reconstruction.attack import KnownNetwork, ObservedGradient, Tick, unwatched
from sordino.attacks.reconstruction.cnn6 import logistic_loss
from sordino.errors import UsageError
from sordino.kernel.randomness import Stream


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
class LayerInput:
    """The input of a convolution, and the share of the right side, in square, that it leaves unexplained."""

    inputs: Tensor = field(repr=False)
    misfit: float


def solved(
    layer: nn.Conv2d, size: tuple[int, int], back: Tensor, gradient: Tensor, kept: Tensor, out: Tensor
) -> LayerInput:
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
    return LayerInput(inputs.reshape(1, layer.in_channels, *size), misfit / (square or 1.0))


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


_LOWEST_AT = 1.278464542761074  # where -u / (1 + e^u) is smallest: u = 1 + W(1 / e)
_LOWEST = -_LOWEST_AT / (1 + math.exp(_LOWEST_AT))
_EQUAL = 1e-6  # of the gradient: what rounding may add to its distance
_FARTHEST = 700.0  # e^u is still a float


@dataclass(frozen=True)
class Recursive:
    """R-GAP. Two margins may fit the last layer, and give one picture at two contrasts with the same gradient.

    Such a network is homogeneous: c x with c times the margin's derivative is another answer. The range of pixels tells
    them apart, unless both lie in it: then the one of higher contrast is given.
    """

    ticks: int = 1

    def check(self, known: KnownNetwork) -> None:
        if known.loss is not logistic_loss:
            raise UsageError("the recursive attack needs the logistic loss of 'cnn6', got another.")
        _Chain.of(known)

    def reconstruct(
        self, known: KnownNetwork, observed: ObservedGradient, randomness: Stream, tick: Tick = unwatched
    ) -> Tensor:
        chain, (low, high) = _Chain.of(known), known.box
        slopes = chain.slopes(observed)
        followed = chain.followed(observed, slopes[0]) * slopes[0]
        tick()
        found = [(followed / slope).clamp(low, high) for slope in slopes]  # all layers are homogeneous
        distances = [_distance(known, observed, inputs) for inputs in found]
        near = min(distances) + _EQUAL * float(observed.value.norm())
        return known.pixels(next(x for x, distance in zip(found, distances, strict=True) if distance <= near))


def margins(product: float) -> tuple[float, ...]:
    """All u with -u / (1 + e^u) = product: one if it is at least 0, two below, none below the smallest value.

    >>> [round(u, 6) for u in margins(-1 / (1 + math.e))], margins(0.0), margins(-0.3)
    ([1.0, 1.596918], (0.0,), ())
    """

    def off(u: float) -> float:
        return -u / (1 + math.exp(u)) - product

    if product == 0:
        return (0.0,)
    if product > 0:  # it falls from infinity to 0 where u is negative
        return (float(brentq(off, -2 * product - 1, 0.0, xtol=1e-15)),)
    if off(_LOWEST_AT) > 0:
        return ()
    ends = ((0.0, _LOWEST_AT), (_LOWEST_AT, _FARTHEST))
    return tuple(float(brentq(off, *between, xtol=1e-15)) for between in ends)


@dataclass(frozen=True)
class _Step:
    """A convolution, its activation's slope below zero, and the shape of its input."""

    name: str
    layer: nn.Conv2d
    slope: float
    input_shape: tuple[int, int, int]

    def undone(self, observed: ObservedGradient, after: Tensor, back: Tensor) -> tuple[LayerInput, Tensor]:
        """The input of the convolution, and dL by it, from what came out of the activation and dL by that."""
        # The slope of the activation, and the middle of both where a sign is not known.
        slopes = torch.where(after > 0, 1.0, self.slope).where(~after.isnan(), (1 + self.slope) / 2)
        before, back = torch.where(after > 0, after, after / self.slope), back * slopes
        seen, kept = observed.tensors()[self.name], observed.kept()[self.name]
        found = solved(self.layer, self.input_shape[1:], back, seen, kept, before)
        return found, _through(self.layer, back, self.input_shape)


@dataclass(frozen=True)
class _Chain:
    """The network as the attack walks through it: convolutions in their order, then the linear layer."""

    steps: tuple[_Step, ...]
    name: str
    last: nn.Linear
    features: tuple[int, int, int]

    @classmethod
    def of(cls, known: KnownNetwork) -> _Chain:
        layers = list(known.model.named_children())
        *body, _, (name, last) = layers
        steps, x = [], torch.zeros(1, *known.input_shape, dtype=known.dtype)
        for (place, layer), (_, activation) in zip(body[::2], body[1::2], strict=True):
            if not isinstance(layer, nn.Conv2d) or layer.bias is not None or not isinstance(activation, nn.LeakyReLU):
                raise UsageError(
                    "the recursive attack needs convolutions without biases, each with a LeakyReLU, "
                    f"got {type(layer).__name__} and {type(activation).__name__}."
                )
            steps.append(_Step(f"{place}.weight", layer, activation.negative_slope, _shape(x)))
            x = layer(x).detach()
        if not isinstance(last, nn.Linear) or last.bias is not None or last.out_features != 1:
            raise UsageError("the recursive attack needs a last layer with one output and no bias, got another.")
        return cls(tuple(steps), f"{name}.weight", last, _shape(x))

    def slopes(self, observed: ObservedGradient) -> list[float]:
        """Every dL/df that the last layer allows, largest input first. Of both labels, that which the next layer fits.

        What was not sent of <g, w> counts as the rest of it.
        """
        seen, kept = observed.tensors()[self.name], observed.kept()[self.name]
        share = float(kept.double().mean()) or 1.0
        product = float((seen * self.last.weight.detach()).sum()) / share
        sizes = [1 / (1 + math.exp(u)) for u in margins(max(product, _LOWEST))]  # noise may have pushed it below
        sign = min((-1.0, 1.0), key=lambda sign: self._below_the_last(observed, sign * sizes[0])[0].misfit)
        return [sign * size for size in sorted(sizes)]

    def followed(self, observed: ObservedGradient, slope: float) -> Tensor:
        """The input of the network, if `slope` is dL/df."""
        found, back = self._below_the_last(observed, slope)
        for step in reversed(self.steps[:-1]):
            found, back = step.undone(observed, found.inputs, back)
        return found.inputs

    def _below_the_last(self, observed: ObservedGradient, slope: float) -> tuple[LayerInput, Tensor]:
        """Through the linear layer and the convolution before it. Features that were not sent are NaN."""
        seen, kept = observed.tensors()[self.name], observed.kept()[self.name]
        features = (seen / slope).where(kept, torch.nan).reshape(1, *self.features)
        back = (slope * self.last.weight.detach()).reshape(1, *self.features)
        return self.steps[-1].undone(observed, features, back)


def _through(layer: nn.Conv2d, back: Tensor, input_shape: tuple[int, int, int]) -> Tensor:
    """The gradient of the loss by the input of a convolution, from that by its output."""
    inputs = torch.zeros(1, *input_shape, dtype=back.dtype, requires_grad=True)
    (found,) = torch.autograd.grad(layer(inputs), inputs, back)
    return found


def _distance(known: KnownNetwork, observed: ObservedGradient, inputs: Tensor) -> float:
    """How far the gradient at these inputs is from what was observed, under the label that comes nearer."""
    return min(
        float((known.gradient(inputs, torch.tensor([label])).where(observed.keep, 0.0) - observed.value).norm())
        for label in (0, 1)
    )


def _shape(x: Tensor) -> tuple[int, int, int]:
    channels, height, width = x.shape[1:]
    return channels, height, width
