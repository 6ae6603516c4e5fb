"""Large batches in small parts, for models that need much memory for each row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from sordino._input import validate
from sordino.opacus.loader import PrivateLoader


@dataclass(frozen=True)
class _InParts:
    loader: PrivateLoader
    largest_part: int

    def __iter__(self) -> Iterator[Any]:
        return self.loader.in_parts(self.largest_part)

    def __len__(self) -> int:
        """The number of batches of an epoch; there are more parts."""
        return len(self.loader)


class BatchMemoryManager:
    """Gives each batch of a private loader in parts of at most `max_physical_batch_size` rows.

    `optimizer.step()` after the last part of a batch takes the step; after any other part it only drops the part's
    activations. Clipping, noise and the count of steps are those of whole batches.
    """

    def __init__(
        self, *, data_loader: PrivateLoader, max_physical_batch_size: int, optimizer: torch.optim.Optimizer
    ) -> None:
        validate.instance(PrivateLoader, data_loader=data_loader)
        validate.instance(torch.optim.Optimizer, optimizer=optimizer)
        validate.count(max_physical_batch_size=max_physical_batch_size)
        self._parts = _InParts(data_loader, max_physical_batch_size)

    def __enter__(self) -> _InParts:
        return self._parts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to give back."""
