"""Three of torchvision's transforms, for pictures that are tensors of bytes already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Compose:
    """One transform after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, picture: Any) -> Any:
        for transform in self._transforms:
            picture = transform(picture)
        return picture


class ToTensor:
    """Bytes as numbers from 0 to 1."""

    def __call__(self, picture: Tensor) -> Tensor:
        return picture.to(torch.float32) / 255


class Normalize:
    """Shifted and scaled by public constants, one per channel."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean, self._std = (torch.tensor(x).reshape(-1, 1, 1) for x in (mean, std))

    def __call__(self, picture: Tensor) -> Tensor:
        return (picture - self._mean) / self._std
