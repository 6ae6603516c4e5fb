"""Three of torchvision's transforms, for images that are uint8 tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Compose:
    """Applies transforms one after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self._transforms:
            image = transform(image)
        return image


class ToTensor:
    """Converts uint8 values to floats from 0 to 1."""

    def __call__(self, image: Tensor) -> Tensor:
        return image.to(torch.float32) / 255


class Normalize:
    """Shifts and scales by public constants, one per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = (torch.tensor(x).reshape(-1, 1, 1) for x in (mean, std))

    def __call__(self, image: Tensor) -> Tensor:
        return (image - self._mean) / self._std
