"""Samplers that scripts of Opacus import. Loaders of `make_private` draw by a sampler of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler

from sordino._input import validate


class UniformWithReplacementSampler(Sampler[list[int]]):
    """Batches of indices in which each joins independently, by torch's generator. A private loader refuses it.

    >>> sampler = UniformWithReplacementSampler(num_samples=10, sample_rate=1.0)
    >>> list(sampler) == [list(range(10))]
    True
    """

    def __init__(
        self,
        *,
        num_samples: int,
        sample_rate: float,
        generator: torch.Generator | None = None,
        steps: int | None = None,
    ) -> None:
        validate.count(num_samples=num_samples)
        validate.between(0, 1, low_open=True, sample_rate=sample_rate)
        self._joins: Tensor = torch.full((num_samples,), sample_rate)
        self._generator = generator
        self._steps = max(1, int(1 / sample_rate)) if steps is None else steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self._steps):
            yield torch.bernoulli(self._joins, generator=self._generator).nonzero()[:, 0].tolist()
