"""R-GAP: reconstructs an image from its gradient, layer by layer from the last to the first (Zhu and Blaschko 2021).

The network must have no biases, invertible activations and the logistic loss. The weights w of the last layer and their
gradient g give <g, w> = -u / (1 + e^u) with u = y f. This gives the derivative of the loss and so the layer's input.

The input x of each convolution below then solves linear equations from its output (W x = out) and from its gradient
(K x = g), equations 11 to 15 of the paper. The paper has a third kind, P x = 0 for padding; here padding is not among
the unknowns. K is the same small matrix for each channel of the input: entry (c, c', u, v) of the gradient is the sum
over output positions p of k[c, p] x[c', stride p + (u, v)].
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
    """The matrix W, shape (outputs, inputs), of a layer without a bias on inputs of height and width `size`.

    >>> layer = nn.Conv2d(1, 1, 2, bias=False).double()
    >>> output_matrix(layer, (2, 2)).shape
    torch.Size([1, 4])
    """
    unknowns = layer.in_channels * size[0] * size[1]
    units = torch.eye(unknowns, dtype=layer.weight.dtype).reshape(unknowns, layer.in_channels, *size)
    with torch.no_grad():
        return torch.cat([layer(part).flatten(1) for part in torch.split(units, 256)]).T


def gradient_matrix(layer: nn.Conv2d, back: Tensor, size: tuple[int, int]) -> Tensor:
    """The matrix K of one input channel, shape (outputs * kernel, height * width), rows in the order of the gradient.

    `back` is the gradient of the loss with respect to the layer's output, shape (1, outputs, height, width).
    """
    pixels = size[0] * size[1]
    units = torch.eye(pixels, dtype=back.dtype).reshape(1, pixels, *size)  # each pixel as a channel of its own
    kernel = layer.kernel_size
    patches = F.unfold(units, kernel, padding=layer.padding, stride=layer.stride)  # type: ignore[arg-type]
    patches = patches.reshape(pixels, kernel[0] * kernel[1], -1)  # pixel, kernel place, output place
    return torch.einsum("cp,xkp->ckx", back[0].flatten(1), patches).reshape(-1, pixels)


@dataclass(frozen=True)
class LayerInput:
    """The input of a convolution, and the residual sum of squares as a fraction of that of the right-hand side."""

    inputs: Tensor = field(repr=False)
    misfit: float


def solved(
    layer: nn.Conv2d, size: tuple[int, int], back: Tensor, gradient: Tensor, kept: Tensor, out: Tensor
) -> LayerInput:
    """The least-squares input of a convolution for its gradient and output.

    Entries of `out` that are NaN, and of `gradient` that were not kept, give no equation. Equations from the gradient
    are scaled to the size of the others, because rounding would hide them otherwise. The normal equations are used,
    because K fills only the blocks of its channels in them; float64 has the precision that this costs.
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
    """Solves the normal equations by Cholesky, or for the solution of least norm if they are singular."""
    factor, failed = torch.linalg.cholesky_ex(normal)
    column = moment[:, None]
    solution: Tensor = (
        torch.linalg.lstsq(normal, column, driver="gelsd").solution if failed else torch.cholesky_solve(column, factor)
    )
    return solution.squeeze(1)


def _size(matrix: Tensor) -> float:
    """The root mean square norm of a column, or 1 if it is zero."""
    return float(torch.linalg.matrix_norm(matrix)) / float(matrix.shape[1]) ** 0.5 or 1.0


_LOWEST_AT = 1.278464542761074  # where -u / (1 + e^u) is smallest: u = 1 + W(1 / e)
_LOWEST = -_LOWEST_AT / (1 + math.exp(_LOWEST_AT))
_EQUAL = 1e-6  # tolerance for rounding in the distance of gradients, relative to the gradient's norm
_FARTHEST = 700.0  # the largest u for which e^u does not overflow


@dataclass(frozen=True)
class Recursive:
    """R-GAP. Two margins may fit the last layer, and give the same image at two contrasts with the same gradient.

    The network is homogeneous: c x is also a solution, for a derivative of the loss divided by c. The range of pixels
    decides between the two; if both lie in it, the one with higher contrast is returned.
    """

    ticks: int = 1

    def check(self, known: KnownNetwork) -> None:
        if known.loss is not logistic_loss:
            raise UsageError("attack 'rgap' needs the logistic loss of 'cnn6', got another loss.")
        _Chain.of(known)

    def reconstruct(
        self, known: KnownNetwork, observed: ObservedGradient, randomness: Stream, tick: Tick = unwatched
    ) -> Tensor:
        chain, (low, high) = _Chain.of(known), known.box
        slopes = chain.slopes(observed)
        followed = chain.followed(observed, slopes[0]) * slopes[0]
        tick()
        candidates = [(followed / slope).clamp(low, high) for slope in slopes]  # all layers are homogeneous
        distances = [_distance(known, observed, inputs) for inputs in candidates]
        near = min(distances) + _EQUAL * float(observed.value.norm())
        return known.pixels(next(x for x, distance in zip(candidates, distances, strict=True) if distance <= near))


def margins(product: float) -> tuple[float, ...]:
    """All solutions u of -u / (1 + e^u) = product: one for product >= 0, two below 0, none below the minimum.

    >>> [round(u, 6) for u in margins(-1 / (1 + math.e))], margins(0.0), margins(-0.3)
    ([1.0, 1.596918], (0.0,), ())
    """

    def difference(u: float) -> float:
        return -u / (1 + math.exp(u)) - product

    if product == 0:
        return (0.0,)
    if product > 0:  # for negative u the function decreases from infinity to 0
        return (float(brentq(difference, -2 * product - 1, 0.0, xtol=1e-15)),)
    if difference(_LOWEST_AT) > 0:
        return ()
    brackets = ((0.0, _LOWEST_AT), (_LOWEST_AT, _FARTHEST))
    return tuple(float(brentq(difference, *bracket, xtol=1e-15)) for bracket in brackets)


@dataclass(frozen=True)
class _Step:
    """A convolution, the negative slope of its activation, and the shape of its input."""

    name: str
    layer: nn.Conv2d
    slope: float
    input_shape: tuple[int, int, int]

    def undone(self, observed: ObservedGradient, after: Tensor, back: Tensor) -> tuple[LayerInput, Tensor]:
        """The input of the convolution and its gradient, from the activation's output `after` and its gradient."""
        # The slope of the activation; the mean of both slopes where the sign is unknown.
        slopes = torch.where(after > 0, 1.0, self.slope).where(~after.isnan(), (1 + self.slope) / 2)
        before, back = torch.where(after > 0, after, after / self.slope), back * slopes
        gradient, kept = observed.tensors()[self.name], observed.kept()[self.name]
        solution = solved(self.layer, self.input_shape[1:], back, gradient, kept, before)
        return solution, _through(self.layer, back, self.input_shape)


@dataclass(frozen=True)
class _Chain:
    """The layers of the network: convolutions in their order, then the linear layer."""

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
                    "attack 'rgap' needs convolutions without biases, each followed by a LeakyReLU, "
                    f"got {type(layer).__name__} and {type(activation).__name__}."
                )
            steps.append(_Step(f"{place}.weight", layer, activation.negative_slope, _shape(x)))
            x = layer(x).detach()
        if not isinstance(last, nn.Linear) or last.bias is not None or last.out_features != 1:
            raise UsageError("attack 'rgap' needs a linear last layer with one output and no bias, got another layer.")
        return cls(tuple(steps), f"{name}.weight", last, _shape(x))

    def slopes(self, observed: ObservedGradient) -> list[float]:
        """All values of dL/df that fit the last layer, in increasing size, so that the largest input comes first.

        The sign, which is the label, is the one for which the layer below has the smaller residual. <g, w> is
        extrapolated from the coordinates that were sent.
        """
        gradient, kept = observed.tensors()[self.name], observed.kept()[self.name]
        fraction = float(kept.double().mean()) or 1.0
        product = float((gradient * self.last.weight.detach()).sum()) / fraction
        # Noise may have pushed the product below the minimum of the function.
        sizes = [1 / (1 + math.exp(u)) for u in margins(max(product, _LOWEST))]
        sign = min((-1.0, 1.0), key=lambda sign: self._below_the_last(observed, sign * sizes[0])[0].misfit)
        return [sign * size for size in sorted(sizes)]

    def followed(self, observed: ObservedGradient, slope: float) -> Tensor:
        """The input of the network if dL/df is `slope`."""
        solution, back = self._below_the_last(observed, slope)
        for step in reversed(self.steps[:-1]):
            solution, back = step.undone(observed, solution.inputs, back)
        return solution.inputs

    def _below_the_last(self, observed: ObservedGradient, slope: float) -> tuple[LayerInput, Tensor]:
        """Inverts the linear layer and the convolution before it. Features that were not sent are NaN."""
        gradient, kept = observed.tensors()[self.name], observed.kept()[self.name]
        features = (gradient / slope).where(kept, torch.nan).reshape(1, *self.features)
        back = (slope * self.last.weight.detach()).reshape(1, *self.features)
        return self.steps[-1].undone(observed, features, back)


def _through(layer: nn.Conv2d, back: Tensor, input_shape: tuple[int, int, int]) -> Tensor:
    """The gradient of the loss with respect to the input of a convolution, from that of its output."""
    inputs = torch.zeros(1, *input_shape, dtype=back.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(inputs), inputs, back)
    return gradient


def _distance(known: KnownNetwork, observed: ObservedGradient, inputs: Tensor) -> float:
    """The distance between the gradient at `inputs` and the observed one, for the label that gives the smaller one."""
    return min(
        float((known.gradient(inputs, torch.tensor([label])).where(observed.keep, 0.0) - observed.value).norm())
        for label in (0, 1)
    )


def _shape(x: Tensor) -> tuple[int, int, int]:
    channels, height, width = x.shape[1:]
    return channels, height, width
