"""Batches that a sampler of ours draws, in place of a script's `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.sampling import Cyclic, Poisson, Sampler, Shuffled
from sordino.opacus.session import Session
from sordino.opacus.traced import TracedTensor

_MOST_STEPS = 10**9


class PrivateLoader:
    """Each batch that it gives is a step of the run, begun when the batch is drawn. An empty batch is a batch.

    `source` is the loader that it stands for, whose data set and batch size it has.
    """

    def __init__(self, source: DataLoader[Any], session: Session) -> None:
        self.source, self.session = source, session
        self.dataset, self.batch_size = source.dataset, source.batch_size

    def __len__(self) -> int:
        """The number of batches in an epoch. Under Poisson sampling their sizes vary, and their number does not."""
        return steps_per_epoch(self.source)

    def __iter__(self) -> Iterator[list[TracedTensor]]:
        return self.in_parts(None)

    def in_parts(self, largest_part: int | None) -> Iterator[list[TracedTensor]]:
        """An epoch, with each batch in parts of at most so many rows."""
        for _ in range(len(self)):
            yield from self.session.issue(largest_part)


def steps_per_epoch(loader: DataLoader[Any]) -> int:
    return max(1, len(loader))


def check_loader(loader: DataLoader[Any]) -> None:
    """Refuses a loader whose batches are not what a sampler of ours would draw in its place."""
    validate.instance(DataLoader, data_loader=loader)
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError("the data set must be indexable to be sampled, got an IterableDataset.")
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        given = type(loader.batch_sampler).__name__
        raise UsageError(f"batches are drawn by a sampler whose privacy is known: give batch_size, got {given}.")
    rows = len(loader.dataset)  # type: ignore[arg-type]
    sampler: Any = loader.sampler
    permutes = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == rows
    if not permutes and type(sampler) is not SequentialSampler:
        raise UsageError(
            f"no privacy is known for batches by {type(sampler).__name__}: leave sampler out; for classes of unequal "
            "size, weigh the loss by public numbers."
        )
    if loader.collate_fn is not default_collate:
        raise UsageError("collate_fn must be left out: give a data set whose rows are tensors of one shape.")
    validate.count(at_most=rows, batch_size=loader.batch_size)


def sampler_for(loader: DataLoader[Any], *, poisson_sampling: bool, epochs: float | None) -> Sampler:
    """What draws in place of the loader. Without `epochs` the number of steps is the script's business."""
    rows, in_epoch = len(loader.dataset), steps_per_epoch(loader)  # type: ignore[arg-type]
    if poisson_sampling:
        steps = _MOST_STEPS if epochs is None else max(1, ceil(epochs * in_epoch))
        return Poisson(rate=(loader.batch_size or 1) / rows, steps=steps)
    whole = _MOST_STEPS // in_epoch if epochs is None else ceil(epochs)
    partition = Shuffled if isinstance(loader.sampler, RandomSampler) else Cyclic
    return partition(in_epoch, whole)
