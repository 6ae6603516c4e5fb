"""Rows of a mapped file as inputs of a network, which are prepared when they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data import Facts, Split
from sordino.kernel.lazy_rows import ManyRows
from sordino.models import Built
from sordino.models.features import Pixels, Spectrum
from sordino.recipes.networks import WithConstant, network_inputs

Row = tuple[Tensor, "int | Tensor"]


class MappedRows(ManyRows):
    """The rows (inputs, target) of a split whose inputs are mapped, as a network gets them.

    Each is what `network_inputs` computes from all rows at once, and costs memory only while it is used.
    """

    def __init__(self, split: Split, built: Built, facts: Facts) -> None:
        self._inputs, self._target = split.inputs.numpy(), split.target
        self._built, self._facts = built, facts
        self._works_elementwise = built.features is None or isinstance(built.features, Pixels)

    @staticmethod
    def can_prepare(built: Built) -> bool:
        """Whether a row is prepared quickly. Scattering features are not: they are computed once, and kept."""
        return built.features is None or isinstance(built.features, Pixels | Spectrum | WithConstant)

    def __len__(self) -> int:
        return len(self._target)

    def __getitem__(self, index: int) -> Row:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> Sequence[Row]:
        """The rows `indices`. Features that are not computed entry by entry are computed for one row at a time."""
        raw = torch.from_numpy(self._inputs[np.asarray(indices)])  # a copy of these rows
        parts = [raw] if self._works_elementwise else torch.split(raw, 1)
        inputs = [x for part in parts for x in network_inputs(self._built, self._facts, part)]
        return list(zip(inputs, self._labels(indices), strict=True))

    def _labels(self, indices: list[int]) -> list[Any]:
        labels = self._target[indices]
        return list(labels) if labels.is_floating_point() else labels.tolist()
