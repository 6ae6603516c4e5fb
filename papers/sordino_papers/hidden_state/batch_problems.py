"""Practical costs of random batches: varying sizes, examples that are never drawn, scattered memory access.

All numbers are measured on the samplers of the library with synthetic rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from sordino._input import validate
from sordino.kernel.randomness import Key
from sordino.kernel.records import Records, as_records
from sordino.kernel.sampling import BallsInBins, Cyclic, Indices, Poisson, Sampler

_TIMED_BATCHES = 20


@dataclass(frozen=True)
class BatchStatistics:
    """Statistics of the batches of one sampler over several epochs.

    `size_deviation` is the standard deviation of batch sizes, `peak_memory` the largest size over the mean size.
    `never_seen` pairs numbers of epochs with the fraction of examples that no batch has contained by then. Times are
    medians per step: drawing a batch, gathering its rows by index, and slicing them, which requires contiguous rows.
    """

    sampler: str
    epochs: int
    smallest: int
    largest: int
    size_deviation: float
    peak_memory: float
    never_seen: tuple[tuple[int, float], ...]
    draw_seconds: float
    gather_seconds: float
    slice_seconds: float | None


def batch_problems(
    *, examples: int = 60_000, batch_size: int = 1000, epochs: int = 10, row_size: int = 784, seed: int = 0
) -> tuple[BatchStatistics, ...]:
    """Statistics of Poisson sampling, random allocation and cyclic batches.

    >>> poisson, allocation, cyclic = batch_problems(examples=600, batch_size=100, epochs=2, row_size=3)
    >>> cyclic.size_deviation, cyclic.never_seen, poisson.never_seen[0][1] > 0
    (0.0, ((1, 0.0), (2, 0.0)), True)
    """
    validate.count(examples=examples, epochs=epochs, row_size=row_size)
    validate.count(at_most=examples, batch_size=batch_size)
    per_epoch = math.ceil(examples / batch_size)
    samplers: tuple[Sampler, ...] = (
        Poisson(batch_size / examples, per_epoch * epochs),
        BallsInBins(per_epoch, epochs),
        Cyclic(per_epoch, epochs),
    )
    rows = (torch.zeros(examples, row_size, dtype=torch.uint8), torch.zeros(examples, dtype=torch.int64))
    records = as_records(rows, allow_single=True)
    return tuple(_measured(sampler, records, per_epoch, epochs, seed) for sampler in samplers)


def expected_never_seen(rate: float, steps: int) -> float:
    """Fraction of examples that Poisson sampling is expected to miss; about 1/e in an epoch.

    >>> round(expected_never_seen(1 / 60, steps=60), 4)
    0.3648
    """
    return (1 - rate) ** steps


def _measured(sampler: Sampler, records: Records, per_epoch: int, epochs: int, seed: int) -> BatchStatistics:
    randomness = Key.from_seed(seed).stream("sampling")
    batches, drawn_at = list[Indices](), [time.perf_counter()]
    for batch in sampler.batches(records.num_units, randomness):
        batches.append(batch)
        drawn_at.append(time.perf_counter())
    sizes = np.array([len(batch) for batch in batches])
    return BatchStatistics(
        sampler=sampler.name,
        epochs=epochs,
        smallest=int(sizes.min()),
        largest=int(sizes.max()),
        size_deviation=float(sizes.std()),
        peak_memory=float(sizes.max()) / sampler.expected_batch_size(records.num_units),
        never_seen=_never_seen(batches, per_epoch, records.num_units),
        draw_seconds=float(np.median(np.diff(drawn_at))),
        gather_seconds=_median_seconds(lambda batch: records.gather(torch.from_numpy(batch)), batches),
        slice_seconds=_slice_seconds(records, batches),
    )


def _never_seen(batches: list[Indices], per_epoch: int, examples: int) -> tuple[tuple[int, float], ...]:
    unseen, shares = np.ones(examples, dtype=bool), []
    for step, batch in enumerate(batches, start=1):
        unseen[batch] = False
        if step % per_epoch == 0:
            shares.append((step // per_epoch, float(unseen.mean())))
    return tuple(shares)


def _slice_seconds(records: Records, batches: list[Indices]) -> float | None:
    """Time of slicing contiguous rows and converting them to floats, or None if rows are not contiguous."""
    if not all(len(batch) and batch[-1] - batch[0] == len(batch) - 1 for batch in batches):
        return None
    (rows, _), _ = records.rows.take(torch.arange(records.num_units))
    return _median_seconds(lambda batch: rows[int(batch[0]) : int(batch[-1]) + 1].to(records.dtype), batches)


def _median_seconds(take: Callable[[Indices], object], batches: list[Indices]) -> float:
    seconds = []
    for batch in islice(batches, _TIMED_BATCHES):
        begun = time.perf_counter()
        take(batch)
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds))
