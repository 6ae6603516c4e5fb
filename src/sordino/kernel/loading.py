"""Reading of rows in worker processes, ahead of the step that needs them, by torch's `DataLoader`.

A run knows its batches in advance: they are functions of its key. So workers read the rows of the next steps while a
step computes. A row is a function of the data and (stream, step, row) in whichever process it is read, so releases do
not depend on workers, bit for bit.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate, default_convert
from torch.utils.data._utils import signal_handling

from sordino._input import validate
from sordino.errors import SordinoError, UsageError
from sordino.kernel.lazy_rows import Collate
from sordino.kernel.rows import ReadAt, Rows

STEPS_AHEAD = 2
_LOGGER = logging.getLogger("sordino")
_TAKEN_APART = (
    "dataset, collate_fn, num_workers, worker_init_fn and pin_memory of the DataLoader are used, collate_fn for each "
    "row alone. Its batches are not: which rows join a step is drawn by the sampler of the plan."
)

Request: TypeAlias = tuple[Tensor, ReadAt | None]  # the arguments of `Rows.take`
Taken: TypeAlias = tuple[tuple[Tensor, ...], Tensor]  # the rows and a mask of those that can be used, as `Rows.take`


@dataclass(frozen=True)
class Loading:
    """How rows of a map-style dataset are read. What is released does not depend on it, except for `collate_fn`.

    With `num_workers` worker processes, the rows of two steps are read ahead while a step computes. `collate_fn` gets
    each row alone, as a list of one, so that it cannot mix rows: it must pad to a fixed shape. `worker_init_fn`,
    `pin_memory` and `multiprocessing_context` are those of torch's `DataLoader`.

    >>> import sordino as so
    >>> rows = [(torch.full((3,), float(index)), index) for index in range(10)]
    >>> doubled = so.as_records(rows, loading=Loading(collate_fn=lambda rows: [2 * x for x in default_collate(rows)]))
    >>> doubled.gather(torch.tensor([4])).inputs[0]
    tensor([[8., 8., 8.]])
    """

    num_workers: int = 0
    collate_fn: Collate | None = None
    worker_init_fn: Callable[[int], None] | None = None
    pin_memory: bool = False
    multiprocessing_context: Any = None

    def __post_init__(self) -> None:
        validate.count(at_least=0, num_workers=self.num_workers)
        for name in ("collate_fn", "worker_init_fn"):
            if (function := getattr(self, name)) is not None and not callable(function):
                raise UsageError(f"{name} must be a function, got {validate.described(function)}.")

    @classmethod
    def of(cls, loader: DataLoader[Any]) -> Loading:
        """The settings of a `DataLoader` that say how rows are read. A message says that its batches are not used."""
        _LOGGER.warning(_TAKEN_APART)
        collate = loader.collate_fn
        return cls(
            loader.num_workers,
            None if collate in (default_collate, default_convert) else collate,
            loader.worker_init_fn,
            loader.pin_memory,
            loader.multiprocessing_context,
        )


class ReadAhead:
    """Rows that workers read before they are taken. `requests` are the rows of coming micro-batches, in order.

    Reading begins with the first `take`. Rows that were not requested are read in this process, and reading ahead ends:
    the caller takes other micro-batches than it said.

    Guarantee: rows are handed out only for the step and the indices for which they were read.
    """

    def __init__(self, rows: Rows, loading: Loading, requests: Iterator[Request], requests_per_step: int) -> None:
        self._rows, self._loading, self._requests = rows, loading, requests
        self._requests_ahead = max(1, ceil(STEPS_AHEAD * requests_per_step / max(1, loading.num_workers)))
        self._requested = deque[Request]()
        self._arriving: Iterator[Taken] | None = None
        self._ended = loading.num_workers == 0

    def take(self, indices: Tensor, at: ReadAt | None) -> Taken:
        """As `take` of the rows: those that were read ahead, if they are the next ones."""
        if self._ended:
            return self._rows.take(indices, at)
        if self._arriving is None:
            self._arriving = _begun(self._loader())
        if not self._requested or not _is_for(self._requested[0], indices, at):
            self._end()
            return self._rows.take(indices, at)
        taken = self._next(self._arriving)
        self._requested.popleft()
        if not self._requested:  # these were the last rows
            self._end()
        return taken

    def _end(self) -> None:
        """Ends the workers, and forgets what they have read."""
        self._ended, self._arriving, self._requests = True, None, iter(())
        self._requested.clear()

    def _next(self, arriving: Iterator[Taken]) -> Taken:
        try:
            return next(arriving)
        except Exception as error:  # rows that cannot be read raise none, and its message may have a row
            self._end()
            kind = MemoryError if isinstance(error, MemoryError) else SordinoError
            raise kind(
                f"a worker process that reads rows has ended ({type(error).__name__}): it was killed, or out of "
                "memory, or worker_init_fn failed. Take fewer workers, or num_workers=0."
            ) from None

    def _loader(self) -> DataLoader[Taken]:
        return DataLoader(
            _Requested(self._rows),
            batch_size=None,
            sampler=_Noted(self._requests, self._requested),
            num_workers=self._loading.num_workers,
            prefetch_factor=self._requests_ahead,
            collate_fn=_unchanged,
            worker_init_fn=self._loading.worker_init_fn,
            pin_memory=self._loading.pin_memory and torch.cuda.is_available(),
            multiprocessing_context=self._loading.multiprocessing_context,
            generator=torch.Generator(),  # otherwise seeds of workers would be drawn from the script's generator
        )


@dataclass(frozen=True)
class _Noted:
    """The sampler of the `DataLoader`: requests as a worker gets them, which are noted in `requested`."""

    requests: Iterator[Request]
    requested: deque[Request]

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], ReadAt | None]]:
        for indices, at in self.requests:
            self.requested.append((indices, at))
            yield indices.numpy(), at  # a tensor would be sent as a shared file


@dataclass(frozen=True)
class _Requested(Dataset[Taken]):
    """The dataset of the `DataLoader`: one element is the rows of one request."""

    rows: Rows

    def __getitem__(self, request: tuple[NDArray[np.int64], ReadAt | None]) -> Taken:
        indices, at = request
        return self.rows.take(torch.from_numpy(indices), at)


def _is_for(request: Request, indices: Tensor, at: ReadAt | None) -> bool:
    requested, requested_at = request
    return requested_at == at and torch.equal(requested, indices)


def _unchanged(taken: Any) -> Any:
    return taken


def _begun(loader: DataLoader[Taken]) -> Iterator[Taken]:
    """Starts the workers.

    Torch installs a signal handler that raises an error wherever the main process is when a worker dies. In a step, the
    error could be taken for one of a row, and the step would not be the one that a resumed run repeats. So the handler
    is removed: `next` notices a dead worker within seconds.
    """
    is_main = threading.current_thread() is threading.main_thread()  # handlers are set, and called, in no other thread
    if not is_main or not hasattr(signal, "SIGCHLD"):
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    is_of_torch = getattr(before, "__module__", None) == signal_handling.__name__
    try:
        return iter(loader)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None or is_of_torch else before)
