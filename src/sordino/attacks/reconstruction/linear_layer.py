"""Reads the input from the gradient of a linear first layer: dL/dW = dL/db x^T (Geiping et al. 2020, Prop. 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino.attacks.reconstruction.attack import KnownNetwork, ObservedGradient, Tick, unwatched
from sordino.errors import UsageError
from sordino.kernel.randomness import Stream


@dataclass(frozen=True)
class FirstLayer:
    """Reconstructs the input of a linear first layer with a bias, by least squares. Exact for a plain gradient."""

    ticks: int = 1

    def check(self, known: KnownNetwork) -> None:
        _first_linear(known.model)

    def reconstruct(
        self, known: KnownNetwork, observed: ObservedGradient, randomness: Stream, tick: Tick = unwatched
    ) -> Tensor:
        name = _first_linear(known.model)
        sent, kept = observed.tensors(), observed.kept()
        weight, bias = (f"{name}.{part}".lstrip(".") for part in ("weight", "bias"))
        # A bias gradient that was not sent is 0, and its row then has weight 0 in the least squares.
        inputs = by_least_squares(sent[weight], sent[bias], kept[weight])
        tick()
        return known.pixels(inputs.reshape(1, *known.input_shape))


def by_best_row(weight: Tensor, bias: Tensor) -> Tensor:
    """x = (dL/dW)_j / (dL/db)_j for the row j with the largest |dL/db|. Exact without noise.

    >>> by_best_row(torch.tensor([[0.5, 1.0], [2.0, 4.0]]), torch.tensor([0.5, 2.0]))
    tensor([1., 2.])
    """
    row = int(bias.abs().argmax())
    return weight[row] / bias[row]


def by_least_squares(weight: Tensor, bias: Tensor, kept: Tensor) -> Tensor:
    """Each x_i by least squares over the rows j for which (dL/dW)_ji and (dL/db)_j were both sent.

    Without such a row x_i is 0, which is the mean of normalized inputs.

    >>> weight, bias = torch.tensor([[0.5, 1.0], [2.0, 0.0]]), torch.tensor([0.5, 2.0])
    >>> by_least_squares(weight, bias, torch.tensor([[True, True], [True, False]]))
    tensor([1., 2.])
    """
    squares = (bias.square()[:, None] * kept).sum(dim=0)
    return torch.where(squares > 0, (bias[:, None] * weight * kept).sum(dim=0) / squares, 0.0)


def _first_linear(model: nn.Module) -> str:
    """The name of the first layer, which must be linear with a bias and take the flat input."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            return str(name)
        if not isinstance(layer, nn.Sequential | nn.Flatten):
            break
    raise UsageError(
        f"attack 'linear' needs a model that begins with a linear layer with a bias, got {type(layer).__name__}."
    )
