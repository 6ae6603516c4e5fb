"""MNIST with torchvision's name and signature, read from the files of `sordino data fetch mnist`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from sordino.data import load


class MNIST(Dataset[tuple[Any, int]]):
    """Dataset of pairs (transformed image, label). `root` and `download` are ignored."""

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
        image, label = self.data[index], int(self.targets[index])
        return (
            self._transform(image) if self._transform else image,
            self._target_transform(label) if self._target_transform else label,
        )
