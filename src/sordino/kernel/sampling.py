"""Samplers: which units join each step, and the privacy event of that.

A sampler draws the batches and composes their privacy event, so that the two cannot be mispaired: no accountant takes a
sampling rate. Fields are public facts. The number of units and the randomness are arguments, because they may be
secret. An empty batch is a batch like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

import numpy as np
from dp_accounting.dp_event import (
    DpEvent,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from numpy.typing import NDArray

from sordino._input import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.events import RandomAllocationDpEvent
from sordino.errors import DataError, UnsupportedEvent, UsageError

if TYPE_CHECKING:  # planning needs samplers and no torch
    from sordino.kernel.randomness import Stream

Indices = NDArray[np.int64]

_MOST_RANKS = 1 << 22


@runtime_checkable
class Sampler(Protocol):
    """Draws the units of each step. The event it composes holds for exactly these draws."""

    name: ClassVar[str]

    @property
    def steps(self) -> int:
        """The number of batches, empty ones included."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """Which datasets count as neighbors."""
        ...

    @property
    def period(self) -> int:
        """The number of steps after which batches are drawn anew: 1 if steps are independent, else one epoch."""
        ...

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        """The batches from step `start` on, as indices of units. A batch is a function of the stream and the step."""
        ...

    def compose(self, release: DpEvent, steps: int) -> DpEvent:
        """The event of `steps` releases, each of which sees one batch."""
        ...

    def expected_batch_size(self, num_units: int) -> float:
        """The mean size of a batch, from public facts only."""
        ...

    def check(self, num_units: int) -> None:
        """Refuses a dataset for which the event would not hold."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Each unit joins each batch independently with probability `rate`.

    Guarantee: units join independently of each other and of everything else, decided by one random 64-bit word per unit
    and step, or, in a large dataset, by geometric gaps between those that join. The probability is `rate` rounded down
    to a multiple of 2^-53. Under add-or-remove the size of the dataset is secret, so
    a public `expected_examples` is required; otherwise the size is public.

    >>> from sordino.kernel.randomness import Key
    >>> [len(batch) for batch in Poisson(rate=1.0, steps=2).batches(5, Key.from_seed(0).stream("sampling"))]
    [5, 5]
    """

    name: ClassVar[str] = "poisson"
    period: ClassVar[int] = 1
    rate: float
    steps: int
    adjacency: Adjacency = Adjacency.ZERO_OUT
    expected_examples: int | None = None

    def __post_init__(self) -> None:
        validate.between(0, 1, low_open=True, rate=self.rate)
        validate.count(steps=self.steps)
        validate.instance(Adjacency, adjacency=self.adjacency)
        _check_expected_examples(self.adjacency, self.expected_examples)

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        for step in range(start, self.steps):
            yield randomness.chosen(num_units, self.rate, step=step)

    def compose(self, release: DpEvent, steps: int) -> DpEvent:
        return _repeated(release if self.rate == 1 else PoissonSampledDpEvent(self.rate, release), steps)

    def expected_batch_size(self, num_units: int) -> float:
        return self.rate * (self.expected_examples or num_units)

    def check(self, num_units: int) -> None:
        """Accepts every size: the event of Poisson sampling holds for any number of units."""


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson sampling whose batches are cut to `largest_batch` units, chosen uniformly, so that memory is bounded.

    Ganesh (2025) gives its dominating pair, which depends on the public number of `examples`. With `largest_batch` at
    one and a half times the expected batch size, truncation costs next to nothing.
    """

    name: ClassVar[str] = "truncated-poisson"
    period: ClassVar[int] = 1
    rate: float
    steps: int
    examples: int
    largest_batch: int
    adjacency: Adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        validate.between(0, 1, low_open=True, rate=self.rate)
        validate.count(steps=self.steps, examples=self.examples)
        validate.count(at_most=self.examples, largest_batch=self.largest_batch)
        _refuse_add_or_remove(self.name, self.adjacency, "its event depends on the number of examples")

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        for step in range(start, self.steps):
            joined = randomness.chosen(num_units, self.rate, step=step)
            if len(joined) > self.largest_batch:
                if num_units <= _MOST_RANKS:
                    ranks = randomness.uniforms(num_units, step=step, block=1)[joined]
                else:  # the law is the same, and memory grows with the batch only
                    ranks = randomness.uniforms(len(joined), step=step, block=1)
                joined = np.sort(joined[np.argsort(ranks, kind="stable")[: self.largest_batch]])
            yield joined

    def compose(self, release: DpEvent, steps: int) -> DpEvent:
        if self.rate == 1 and self.largest_batch == self.examples:
            return _repeated(release, steps)  # all units join, and no batch is cut
        multiplier = _gaussian_multiplier(self.name, release)
        event = TruncatedSubsampledGaussianDpEvent(self.examples, self.rate, self.largest_batch, multiplier)
        return _repeated(event, steps)

    def expected_batch_size(self, num_units: int) -> float:
        return min(self.rate * self.examples, self.largest_batch)

    def check(self, num_units: int) -> None:
        _check_size(self.name, self.examples, num_units)


@dataclass(frozen=True)
class BallsInBins:
    """Random allocation: in each epoch, each unit joins one of `bins` batches, chosen uniformly and independently.

    Each unit takes part once per epoch, as with shuffling, and epsilon is about that of Poisson sampling.
    """

    name: ClassVar[str] = "balls-in-bins"
    bins: int
    epochs: int
    adjacency: Adjacency = Adjacency.ZERO_OUT
    expected_examples: int | None = None

    def __post_init__(self) -> None:
        validate.count(bins=self.bins, epochs=self.epochs)
        validate.count(steps=self.steps)
        validate.instance(Adjacency, adjacency=self.adjacency)
        _check_expected_examples(self.adjacency, self.expected_examples)

    @property
    def steps(self) -> int:
        return self.bins * self.epochs

    @property
    def period(self) -> int:
        return self.bins

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        for epoch in range(start // self.bins, self.epochs):
            bin_of_unit = np.floor(randomness.uniforms(num_units, step=epoch) * self.bins).astype(np.int64)
            for chosen in range(max(0, start - epoch * self.bins), self.bins):
                yield np.flatnonzero(bin_of_unit == chosen)

    def compose(self, release: DpEvent, steps: int) -> DpEvent:
        epochs = ceil(steps / self.bins)
        if self.bins == 1:
            return _repeated(release, epochs)
        multiplier = _gaussian_multiplier(self.name, release)
        return RandomAllocationDpEvent(multiplier, self.bins, epochs) if epochs else NoOpDpEvent()

    def expected_batch_size(self, num_units: int) -> float:
        return (self.expected_examples or num_units) / self.bins

    def check(self, num_units: int) -> None:
        """Accepts every size: the event of random allocation holds for any number of units."""


@dataclass(frozen=True)
class _Partition:
    """Base of samplers that split the dataset into disjoint batches once per epoch. Each epoch costs one release."""

    name: ClassVar[str]
    batches_per_epoch: int
    epochs: int
    adjacency: Adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        validate.count(batches_per_epoch=self.batches_per_epoch, epochs=self.epochs)
        validate.count(steps=self.steps)
        _refuse_add_or_remove(self.name, self.adjacency, "removing one record moves other records to other batches")

    @property
    def steps(self) -> int:
        return self.batches_per_epoch * self.epochs

    @property
    def period(self) -> int:
        return self.batches_per_epoch

    def compose(self, release: DpEvent, steps: int) -> DpEvent:
        return _repeated(release, ceil(steps / self.batches_per_epoch))

    def expected_batch_size(self, num_units: int) -> float:
        return num_units / self.batches_per_epoch

    def check(self, num_units: int) -> None:
        """Accepts every size: a partition may have empty batches, whose steps release noise alone."""


@dataclass(frozen=True)
class Shuffled(_Partition):
    """A fresh random partition into `batches_per_epoch` batches each epoch, accounted without amplification.

    Each unit takes part once per epoch. No bound on amplification by this shuffle is used; Chua et al. (2024) show that
    it amplifies less than Poisson sampling.
    """

    name: ClassVar[str] = "shuffled"

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        for epoch in range(start // self.batches_per_epoch, self.epochs):
            parts = np.array_split(randomness.permutation(num_units, step=epoch), self.batches_per_epoch)
            yield from parts[max(0, start - epoch * self.batches_per_epoch) :]


@dataclass(frozen=True)
class Cyclic(_Partition):
    """A fixed partition into disjoint batches, which come in the same order in every epoch."""

    name: ClassVar[str] = "cyclic"

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        parts = np.array_split(np.arange(num_units), self.batches_per_epoch)
        for step in range(start, self.steps):
            yield parts[step % self.batches_per_epoch]


@dataclass(frozen=True)
class FixedSize:
    """Each batch is a uniformly random set of exactly `batch_size` of the `examples` units, without replacement.

    Bounds are known for replace-one adjacency only, under which the sensitivity is twice the clip norm.
    """

    name: ClassVar[str] = "fixed-size"
    period: ClassVar[int] = 1
    batch_size: int
    examples: int
    steps: int
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        validate.count(examples=self.examples, steps=self.steps)
        validate.count(at_most=self.examples, batch_size=self.batch_size)
        validate.instance(Adjacency, adjacency=self.adjacency)
        if self.adjacency is not Adjacency.REPLACE_ONE:
            raise UsageError(f"{self.name} sampling has a guarantee under replace-one only, got {self.adjacency}.")

    def batches(self, num_units: int, randomness: Stream, start: int = 0) -> Iterator[Indices]:
        for step in range(start, self.steps):
            yield randomness.subset(num_units, self.batch_size, step=step)

    def compose(self, release: DpEvent, steps: int) -> DpEvent:
        if self.batch_size == self.examples:
            return _repeated(release, steps)
        return _repeated(SampledWithoutReplacementDpEvent(self.examples, self.batch_size, release), steps)

    def expected_batch_size(self, num_units: int) -> float:
        return self.batch_size

    def check(self, num_units: int) -> None:
        _check_size(self.name, self.examples, num_units)


def steps_for(epochs: float, num_units: int, batch_size: int) -> int:
    """The number of steps for `epochs` passes at this expected batch size. A rounding error does not add a step.

    >>> steps_for(1.1, num_units=100, batch_size=11)
    10
    """
    validate.between(0, 1e9, low_open=True, epochs=epochs)
    return max(1, ceil(epochs * num_units / batch_size * (1 - 1e-12)))


def steps_per_epoch(num_units: int, batch_size: float) -> int:
    """The number of steps of one pass over the data, rounded to the nearest integer.

    >>> steps_per_epoch(60_000, batch_size=2048)
    29
    """
    return max(1, round(num_units / batch_size))


def _repeated(event: DpEvent, times: int) -> DpEvent:
    return SelfComposedDpEvent(event, times) if times else NoOpDpEvent()


def _gaussian_multiplier(name: str, release: DpEvent) -> float:
    if not isinstance(release, GaussianDpEvent):
        raise UnsupportedEvent(f"{name} sampling has a known bound for Gaussian noise only, got {release}.")
    return float(release.noise_multiplier)


def _check_expected_examples(adjacency: Adjacency, expected_examples: int | None) -> None:
    if adjacency is not Adjacency.ADD_OR_REMOVE:
        if expected_examples is not None:
            raise UsageError("expected_examples is for add-or-remove; otherwise the number of examples is public.")
    elif expected_examples is None:
        raise UsageError("under add-or-remove the number of examples is secret: pass a public expected_examples.")
    else:
        validate.count(expected_examples=expected_examples)


def _refuse_add_or_remove(name: str, adjacency: Adjacency, reason: str) -> None:
    validate.instance(Adjacency, adjacency=adjacency)
    if adjacency is Adjacency.ADD_OR_REMOVE:
        raise UsageError(f"{name} sampling has no add-or-remove guarantee ({reason}); use zero-out or replace-one.")


def _check_size(name: str, declared: int, found: int) -> None:
    if declared != found:
        raise DataError(f"{name} sampling was made for {declared} examples, got a dataset of {found}.")
