"""MNIST by torchvision's name and signature, read from where `sordino data fetch mnist` puts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from sordino.data import load


class MNIST(Dataset[tuple[Any, int]]):
    """Pairs of a picture, as `transform` leaves it, and a label. `root` and `download` are not needed."""

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[Tensor], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        download: bool = False,
    ) -> None:
        data = load("mnist")
        split = data.train if train else data.test
        assert split is not None  # MNIST has a test set
        self.data, self.targets = split.inputs, split.target
        self._transform, self._target_transform = transform, target_transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        picture, label = self.data[index], int(self.targets[index])
        return (
            self._transform(picture) if self._transform else picture,
            self._target_transform(label) if self._target_transform else label,
        )
