"""`PrivateLoader`: replaces a script's `DataLoader` by batches of a sampler of this library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeGuard

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.distributed import DistributedSampler

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.sampling import Cyclic, Poisson, Sampler, Shuffled
from sordino.opacus.distributed import refuse_other_processes
from sordino.opacus.session import Session

_MOST_STEPS = 10**9


@dataclass(frozen=True)
class PublicRates:
    """Public facts about the batches of a private loader, under the names of Opacus. The run draws the batches."""

    num_samples: int
    sample_rate: float


class PrivateLoader:
    """A loader whose batches, including empty ones, are steps of the run. A step begins when its batch is drawn.

    `source` is the original loader, with the same dataset and batch size. The loader has no batches until it is passed
    to `make_private`.
    """

    def __init__(self, source: DataLoader[Any]) -> None:
        check_loader(source)
        self.source = source
        self.dataset, self.batch_size = source.dataset, source.batch_size
        self._session: Session | None = None

    @classmethod
    def from_data_loader(
        cls, data_loader: DataLoader[Any], *, generator: None = None, distributed: bool = False, **kwargs: Any
    ) -> PrivateLoader:
        """A loader to pass to `make_private`, which returns the same object with batches."""
        if generator is not None:
            raise UsageError("generator must be None, because sampling is cryptographic; see PrivacyEngine(seed=...).")
        if distributed:
            refuse_other_processes()
        return cls(data_loader)

    @property
    def batch_sampler(self) -> PublicRates:
        """The number of rows and the sampling rate. Batches are drawn by the run, not by this object."""
        return PublicRates(len(self.dataset), self.sample_rate)  # type: ignore[arg-type]

    @property
    def sample_rate(self) -> float:
        """The probability with which each row joins a batch, under Poisson sampling."""
        return (self.batch_size or 1) / len(self.dataset)  # type: ignore[arg-type]

    @property
    def session(self) -> Session | None:
        """The run of which the batches are steps, or None before `make_private`."""
        return self._session

    def begin(self, session: Session) -> None:
        """Makes the batches of this loader the steps of a session."""
        self._session = session

    def __len__(self) -> int:
        """The number of batches in an epoch. It is fixed; under Poisson sampling the batch sizes vary."""
        return steps_per_epoch(self.source)

    def __iter__(self) -> Iterator[Any]:
        return self.in_parts(None)

    def in_parts(self, largest_part: int | None) -> Iterator[Any]:
        """Iterates over an epoch, with each batch in parts of at most `largest_part` rows."""
        if self._session is None:
            raise UsageError("this loader has no batches yet: pass it to make_private, and use what that returns.")
        for _ in range(len(self)):
            yield from self._session.issue(largest_part)


def is_waiting(loader: object) -> TypeGuard[PrivateLoader]:
    """Whether a loader is private and has no batches yet."""
    return isinstance(loader, PrivateLoader) and loader.session is None


def steps_per_epoch(loader: DataLoader[Any]) -> int:
    return max(1, len(loader))


def check_loader(loader: DataLoader[Any]) -> None:
    """Raises an error for a loader whose batches a private sampler cannot replace."""
    validate.instance(DataLoader, data_loader=loader)
    if isinstance(loader.dataset, IterableDataset):
        raise UsageError("the dataset must be indexable, because it is sampled, got an IterableDataset.")
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        given = type(loader.batch_sampler).__name__
        raise UsageError(
            f"data_loader must have a batch_size and no batch_sampler of unknown privacy, got a batch_sampler {given}."
        )
    rows = len(loader.dataset)  # type: ignore[arg-type]
    sampler: Any = loader.sampler
    alone = type(sampler) is DistributedSampler and sampler.num_replicas == 1
    permutes = alone or (type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == rows)
    if not permutes and type(sampler) is not SequentialSampler:
        raise UsageError(
            f"data_loader must have no sampler of its own, got {type(sampler).__name__}, whose privacy is unknown: for "
            "imbalanced classes, weight the loss by public constants."
        )
    validate.count(at_most=rows, batch_size=loader.batch_size)


def sampler_for(loader: DataLoader[Any], *, poisson_sampling: bool, epochs: float | None) -> Sampler:
    """The sampler that replaces the loader's. Without `epochs` the script decides on the number of steps."""
    rows, per_epoch = len(loader.dataset), steps_per_epoch(loader)  # type: ignore[arg-type]
    if poisson_sampling:
        steps = _MOST_STEPS if epochs is None else max(1, ceil(epochs * per_epoch))
        return Poisson(rate=(loader.batch_size or 1) / rows, steps=steps)
    whole_epochs = _MOST_STEPS // per_epoch if epochs is None else ceil(epochs)
    partition = Shuffled if isinstance(loader.sampler, RandomSampler | DistributedSampler) else Cyclic
    return partition(per_epoch, whole_epochs)
