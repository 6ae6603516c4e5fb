"""One step of private training, from the units that join to a private gradient. Read this file first.

 indices           PerExample          PerExample          BoundedSum        Private           Private
Sampler --> Contribution --> encode --> Clip (+ sum) --> Noise --> decode --> | any torch optimizer
   |                                                        |                 |
   '-- compose(release, steps) <------------- noise.event --'                 '-- the privacy boundary

A `Plan` is a theorem: the types of its fields are the hypotheses, its event is the conclusion. `step` is a function
that carries out one step of it; all that it uses is an argument. `PrivateRun` counts steps and charges the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from dp_accounting.dp_event import DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee, Unit
from sordino.kernel.budget import Release
from sordino.kernel.clipping import Clip
from sordino.kernel.contribution import Contribution
from sordino.kernel.encoding import Codec, Encoding, State, Unchanged
from sordino.kernel.micro_batches import split
from sordino.kernel.noise import Noise, check_tail
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Batch, Records
from sordino.kernel.rows import ReadAt
from sordino.kernel.sampling import Sampler
from sordino.kernel.states import BoundedSum, PerExample, Private

_NOISE_PREFIX = "noise/"  # of the names of the noise's state, in one mapping with the state of the encoding


@dataclass(frozen=True)
class Plan:
    """The stages of a private training: what each step releases, and how many steps there are.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    >>> plan = so.Plan(so.Poisson(rate=0.01, steps=100), gradient, clip, noise)
    >>> plan.guarantee(delta=1e-5).adjacency
    <Adjacency.ZERO_OUT: 'zero-out'>
    """

    sampler: Sampler
    contribution: Contribution
    clip: Clip
    noise: Noise
    encoding: Encoding = field(default_factory=Unchanged)

    def __post_init__(self) -> None:
        validate.instance(Sampler, sampler=self.sampler)
        validate.instance(Contribution, contribution=self.contribution)
        validate.instance(Clip, clip=self.clip)
        validate.instance(Noise, noise=self.noise)
        validate.instance(Encoding, encoding=self.encoding)

    @property
    def stages(self) -> tuple[object, ...]:
        """The stages that must be equal when a run is resumed. For the contribution, gradients are compared instead."""
        return (self.sampler, self.clip, self.noise, self.encoding)

    @property
    def steps(self) -> int:
        return self.sampler.steps

    @property
    def adjacency(self) -> Adjacency:
        return self.sampler.adjacency

    @property
    def event(self) -> DpEvent:
        """The privacy event of all steps together, derived from the stages."""
        return self.sampler.compose(self.noise.event, self.steps)

    def guarantee(self, *, delta: float, unit: Unit = Unit.EXAMPLE, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """The guarantee of the plan once it is carried out, whether or not it is stopped early."""
        promise = Guarantee.of(self.event, self.adjacency, delta=delta, unit=unit, assumptions=assumptions)
        self.check_noise(delta)
        return promise

    def check_noise(self, delta: float) -> None:
        """Refuses a plan whose noise has too large a tail risk for this delta."""
        check_tail(self.noise, self.adjacency, steps=self.steps, delta=delta)


@dataclass(frozen=True)
class StepState:
    """The states of encoding and noise before a step: a function of earlier releases, and as public as they are."""

    encoding: State
    noise: State = field(default_factory=dict)

    @classmethod
    def of_names(cls, saved: Mapping[str, Tensor]) -> StepState:
        """The state from a mapping that `by_name` made."""
        noise = {name.removeprefix(_NOISE_PREFIX): x for name, x in saved.items() if name.startswith(_NOISE_PREFIX)}
        return cls({name: x for name, x in saved.items() if not name.startswith(_NOISE_PREFIX)}, noise)

    def by_name(self) -> State:
        """Both states in one mapping, for a checkpoint.

        >>> StepState({"keep": torch.ones(1)}, {"sum": torch.ones(1)}).by_name().keys()
        dict_keys(['keep', 'noise/sum'])
        """
        return {**self.encoding, **{_NOISE_PREFIX + name: x for name, x in self.noise.items()}}


@dataclass(frozen=True, repr=False)
class Streams:
    """The streams of a run for all draws except its noise: sampling, codecs, dropout, and reading of rows."""

    sampling: Stream
    coding: Stream
    dropout: Stream
    rows: Stream

    @classmethod
    def of(cls, key: Key) -> Streams:
        """The streams of a release with this key."""
        return cls(key.stream("sampling"), key.stream("coding"), key.stream("dropout"), key.stream("rows"))


@dataclass(frozen=True, repr=False)
class BegunStep:
    """A step that has been counted: the units that join it (private) and its codec."""

    step: int
    indices: Tensor
    codec: Codec


def step(
    plan: Plan,
    model: nn.Module,
    records: Records,
    state: StepState,
    number: int,
    joined: Tensor,
    *,
    streams: Streams,
    release: Release,
    units_at_a_time: int,
) -> tuple[Private, StepState]:
    """Carries out step `number` for the units `joined`. Returns the private gradient and the state after the step.

    Guarantee: that of `plan`, if `joined` is batch `number` that its sampler draws from `streams.sampling`, and
    `release` adds noise at an address that nothing else has.
    """
    begun = begin(plan, state, number, joined, streams)
    total = bounded_sum(plan, model, records, begun, streams, units_at_a_time)
    return finish(begun, total, state, release)


def begin(plan: Plan, state: StepState, number: int, joined: Tensor, streams: Streams) -> BegunStep:
    """Makes the codec of the step."""
    return BegunStep(number, joined, plan.encoding.codec(state.encoding, number, streams.coding))


def bounded_sum(
    plan: Plan, model: nn.Module, records: Records, begun: BegunStep, streams: Streams, units_at_a_time: int
) -> BoundedSum:
    """The sum over all units that joined, to which each adds at most the clip's bound. It never leaves the run.

    It is added up by micro-batches, on which neither the codec nor the step count depends.
    """

    sums = (
        clipped(plan, begun, plan.contribution.of(model, batch, seeds))
        for batch, seeds in _micro_batches(records, begun, streams, units_at_a_time)
    )
    total = next(sums)
    for each in sums:
        total += each
    return total


def _micro_batches(
    records: Records, begun: BegunStep, streams: Streams, units_at_a_time: int
) -> Iterator[tuple[Batch, Tensor]]:
    """The rows of the units that joined, at least one part, and one seed per row.

    With buckets, all rows are read first, because the length of a row says to which bucket its unit belongs. A smaller
    bucket has more units at a time, as its rows are shorter.
    """
    if records.buckets is None:
        for part in read_together(records, begun.indices, units_at_a_time):
            yield gathered(records, part, begun.step, streams)
        return
    batch, seeds = gathered(records, begun.indices, begun.step, streams)
    for length, units in records.units_by_length(batch):
        for part in split(units, units_at_a_time * records.buckets.longest // length):
            of_units, rows = batch.of_units(part)
            yield records.cut(of_units, length), seeds[rows]


def read_together(records: Records, joined: Tensor, units_at_a_time: int) -> tuple[Tensor, ...]:
    """The parts of a batch whose rows are read at a time: micro-batches, or with buckets all."""
    return split(joined, units_at_a_time) if records.buckets is None else (joined,)


def gathered(records: Records, units: Tensor, number: int, streams: Streams) -> tuple[Batch, Tensor]:
    """The records of some of the units that joined, and one seed per row."""
    batch = records.gather(units, ReadAt(streams.rows, number))
    return batch, row_seeds(streams.dropout, number, records, units, batch)


def row_seeds(dropout: Stream, number: int, records: Records, indices: Tensor, batch: Batch) -> Tensor:
    """One seed per row for random draws of the model: a function of step, unit and row within the unit only."""
    base = int(dropout.words(1, step=number).astype("int64")[0])
    if records.rows_per_unit == 1:
        return base + (indices << 20)
    rows = torch.arange(len(batch.units))
    first_row = torch.full((batch.num_units,), len(rows)).scatter_reduce(0, batch.units, rows, "amin")
    row_of_unit = rows - first_row[batch.units]
    return base + (indices[batch.units] << 20) + row_of_unit


def clipped(plan: Plan, begun: BegunStep, each: PerExample) -> BoundedSum:
    """The bounded sum over some of the units that joined. Sums of disjoint units may be added up."""
    return plan.clip(begun.codec.encode(each))


def finish(begun: BegunStep, total: BoundedSum, state: StepState, release: Release) -> tuple[Private, StepState]:
    """Adds the step's noise to its sum, then decodes the release and learns from it, which costs no privacy."""
    released, learned = release.add_and_learn(total, begun.step, state.noise, begun.codec.encode)
    private, next_coding = begun.codec.decode(released)
    return private, StepState(next_coding, learned)


def sum_of_nobody(plan: Plan, model: nn.Module, records: Records, state: StepState, streams: Streams) -> BoundedSum:
    """The sum of step 0 for an empty batch. Its layout has the coordinates to which noise is added."""
    empty = begin(plan, state, 0, torch.zeros(0, dtype=torch.int64), streams)
    return bounded_sum(plan, model, records, empty, streams, 1)
