"""Pixels on the scale that networks are made for, by public facts alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError

_BYTES = (0.0, 255.0)


@dataclass(frozen=True)
class Pixels:
    """Inputs brought from their public range to [0, 1], then normalised by public constants, as float32.

    Bytes without a declared range are from 0 to 255; other inputs without one stay as they are. `mean` and `std` are on
    the scale from 0 to 1, one for each channel or one for all.

    >>> Pixels(mean=(0.5,), std=(0.25,))(torch.tensor([[0, 255]], dtype=torch.uint8))
    tensor([[-2.,  2.]])
    """

    input_range: tuple[float, float] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.input_range is not None:
            validate.interval(-3e38, 3e38, input_range=self.input_range)
        validate.instance((tuple, list, type(None)), mean=self.mean, std=self.std)
        validate.positive(**{f"std[{channel}]": std for channel, std in enumerate(self.std or ())})

    def __call__(self, inputs: Tensor) -> Tensor:
        low, high = self.input_range or (_BYTES if inputs.dtype == torch.uint8 else (0.0, 1.0))
        pixels = inputs.to(torch.float32, copy=True)
        if self.input_range is not None:
            pixels.clamp_(low, high)  # the range is public, whatever a record holds
        pixels.sub_(low).div_(high - low)
        if self.mean is not None:
            pixels.sub_(_by_channel(self.mean, pixels))
        if self.std is not None:
            pixels.div_(_by_channel(self.std, pixels))
        return pixels


def _by_channel(constants: tuple[float, ...], pixels: Tensor) -> Tensor:
    """[1, channels, 1, ...]"""
    if len(constants) not in (1, pixels.shape[1]):
        raise UsageError(f"there must be a constant for each of {pixels.shape[1]} channels, got {len(constants)}.")
    return torch.tensor(constants).reshape(1, -1, *(1,) * (pixels.ndim - 2))
