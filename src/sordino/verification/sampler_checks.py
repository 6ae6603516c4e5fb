"""Statistical tests of batches against the distribution that the event assumes.

The distribution is read from the event, so the tests find a sampler that is paired with a wrong event.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import sqrt

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from numpy.typing import NDArray
from scipy import stats

from sordino.accounting import RandomAllocationDpEvent
from sordino.errors import UnsupportedEvent
from sordino.kernel.randomness import Key
from sordino.kernel.sampling import Sampler
from sordino.verification.verdict import Finding, at_most, equal, probable

NAME = "sampler statistics"
_UNITS, _BATCHES, _ENTRIES = 400, 1500, 10**7
_FEW_UNITS, _COUNTED = 2, 5000

Joined = NDArray[np.bool_]  # shape (batch, unit): which unit was in which batch


def examine(sampler: Sampler, *, seed: int) -> Iterator[Finding]:
    """Draws batches as a run would and compares them with the event that the sampler composes."""
    stream = Key.from_seed(seed).stream("sampling")
    counted = min(sampler.steps, _COUNTED)
    last_batches = sampler.batches(_FEW_UNITS, stream, start=sampler.steps - counted)
    yield equal(NAME, "number of batches, empty ones included", sum(1 for _ in last_batches), counted)
    num_units = getattr(sampler, "examples", _UNITS)
    drawn = list(islice(sampler.batches(num_units, stream), max(1, min(_BATCHES, _ENTRIES // num_units))))
    joined = np.zeros((len(drawn), num_units), bool)
    for row, indices in zip(joined, drawn, strict=True):
        row[indices] = True
    yield equal(NAME, "units drawn twice in a batch", float(sum(map(len, drawn)) - joined.sum()), 0)
    yield from _distribution(sampler.compose(GaussianDpEvent(1.0), sampler.steps), joined)


def _distribution(event: DpEvent, joined: Joined) -> Iterator[Finding]:
    match event:
        case SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=rate)):
            yield from _independent(joined, rate)
        case SelfComposedDpEvent(event=GaussianDpEvent(), count=participations):
            yield at_most(NAME, "batches that one unit joins", float(joined.sum(axis=0).max()), participations)
        case SelfComposedDpEvent(event=SampledWithoutReplacementDpEvent(sample_size=size)):
            yield from _fixed_size(joined, size)
        case SelfComposedDpEvent(event=TruncatedSubsampledGaussianDpEvent() as inner):
            yield at_most(NAME, "largest batch", float(joined.sum(axis=1).max()), inner.truncated_batch_size)
            yield from _units_alike(joined, joined.mean())
            mean = joined.sum(axis=1).mean()
            spread = sqrt(inner.dataset_size * inner.sampling_probability / len(joined))
            yield at_most(NAME, "mean batch", float(mean), inner.dataset_size * inner.sampling_probability + 5 * spread)
        case RandomAllocationDpEvent(bins=bins):
            yield from _allocated(joined, bins)
        case _:
            raise UnsupportedEvent(f"there is no statistical test for batches of {event}.")


def _independent(joined: Joined, rate: float) -> Iterator[Finding]:
    """Tests for Poisson sampling: totals, units, batches and successive batches vary as independent draws do."""
    yield probable(NAME, "sampling rate", float(stats.binomtest(int(joined.sum()), joined.size, rate).pvalue))
    yield from _units_alike(joined, rate)
    yield probable(NAME, "scatter of batch sizes", _scatter(joined.sum(axis=1), joined.shape[1], rate))
    if 0 < rate < 1 and len(joined) > 1:
        centered = joined - rate
        products = (centered[1:] * centered[:-1]).sum() / (rate * (1 - rate))
        score = abs(products) / sqrt((len(joined) - 1) * joined.shape[1])
        yield probable(NAME, "independence of successive batches", 2 * float(stats.norm.sf(score)))


def _units_alike(joined: Joined, rate: float) -> Iterator[Finding]:
    yield probable(NAME, "scatter of participations", _scatter(joined.sum(axis=0), len(joined), rate))


def _fixed_size(joined: Joined, size: int) -> Iterator[Finding]:
    yield at_most(NAME, "largest batch", float(joined.sum(axis=1).max()), size)
    yield at_most(NAME, "smallest batch, negated", -float(joined.sum(axis=1).min()), -size)
    yield from _units_alike(joined, size / joined.shape[1])


def _allocated(joined: Joined, bins: int) -> Iterator[Finding]:
    """Tests for balls in bins: one bin per unit and epoch, uniform and independent between units."""
    epochs = len(joined) // bins
    whole = joined[: epochs * bins].reshape(epochs, bins, -1)
    if epochs:
        yield at_most(NAME, "bins that one unit joins in an epoch", float(whole.sum(axis=1).max()), 1)
        yield at_most(NAME, "bins that one unit misses in an epoch", float((whole.sum(axis=1) == 0).max()), 0)
    sizes = joined.sum(axis=1)
    # A multinomial has bins - 1 free sizes per epoch, so its variation is slightly below that of independent draws.
    yield probable(NAME, "scatter of batch sizes", _scatter(sizes, joined.shape[1], 1 / bins, free=len(sizes) - epochs))


def _scatter(counts: NDArray[np.int64], trials: int, rate: float, free: int | None = None) -> float:
    """Two-sided p-value of the binomial index of dispersion, by a gamma distribution of its exact mean and variance."""
    variance = trials * rate * (1 - rate)
    if variance == 0:
        return float(np.all(counts == trials * rate))
    index = float(((counts - trials * rate) ** 2).sum() / variance)
    expected = len(counts) if free is None else free
    excess = (1 - 6 * rate * (1 - rate)) / variance  # excess kurtosis of the binomial
    distribution = stats.gamma(expected / (2 + excess), scale=2 + excess)
    return 2 * min(float(distribution.cdf(index)), float(distribution.sf(index)))
