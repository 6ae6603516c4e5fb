"""`PrivateRun`: carries out a plan on one dataset, step by step, and has its guarantee.

A `PrivateRun` returns `Private` gradients: never batches, losses or norms. The step itself is a function, in
`sordino.kernel.step`. This file has the iterator, the count of steps and the charge to the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import tee
from math import ceil
from typing import Literal, NoReturn

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Guarantee
from sordino.errors import UsageError
from sordino.kernel.buckets import ROUNDED_ALIKE
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.encoding import State
from sordino.kernel.micro_batches import MEMORY_MIB, keep_what_is_freed, units_at_a_time
from sordino.kernel.noise import LearningNoise, NoiseAt, arithmetic_of, warn_if_hopeless
from sordino.kernel.randomness import Key
from sordino.kernel.records import Batch, Data, Records
from sordino.kernel.rows import ReadAt
from sordino.kernel.sampling import Indices
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private
from sordino.kernel.step import (
    BegunStep,
    Plan,
    StepState,
    Streams,
    begin,
    bounded_sum,
    clipped,
    finish,
    gathered,
    read_together,
    step,
    sum_of_nobody,
)


class PrivateRun:
    """Carries out one plan on one dataset. Iterate over it for the `Private` gradient of each step.

    The gradient is computed at the parameters that the model has when the step is requested. `physical_batch_size` is
    the number of units held in memory at a time, or "auto" for the fastest number within about `memory_mib`; it changes
    nothing else. With a `seed` the run is reproducible, and its guarantee states that anyone who knows the seed can
    remove the noise. Two runs on one `Budget` draw different noise, even with the same seed. A resumed run is given the
    `identity` that it had, and so draws the same noise; a budget that holds it is not charged again. `continue_at` says
    when a run may be resumed.

    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> model, data = nn.Linear(4, 3), (torch.zeros(20, 4), torch.zeros(20, dtype=torch.int64))
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(4.0)
    >>> plan = so.Plan(so.Poisson(rate=0.5, steps=2), gradient, clip, noise)
    >>> for private in so.PrivateRun(plan, model, data, seed=0):
    ...     private.divide(10).write_to(model)
    >>> model.weight.grad.shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        data: Data | Budget,
        *,
        seed: int | None = None,
        key: Key | None = None,
        identity: RunIdentity | None = None,
        physical_batch_size: int | Literal["auto"] = "auto",
        memory_mib: int = MEMORY_MIB,
    ) -> None:
        validate.instance(Plan, plan=plan)
        validate.instance(nn.Module, model=model)
        if seed is not None and key is not None:
            raise UsageError(
                "seed and key exclude each other: a seed makes the run reproducible, a key keeps it secret."
            )
        if key is None:
            key = Key.fresh() if seed is None else Key.from_seed(seed)
        validate.instance(Key, key=key)
        self.plan = plan
        self.layout = Layout.of(model)
        validate.count(memory_mib=memory_mib)
        if physical_batch_size != "auto":
            validate.count(physical_batch_size=physical_batch_size)
        self._budget = data if isinstance(data, Budget) else Budget(data)
        self._budget.check_process()  # before torch computes anything, which may hang in a forked process
        self._records = self._budget.records
        plan.sampler.check(self._records.num_units)
        plan.contribution.check(model, self._records)
        self._model = model
        self.physical_batch_size = (
            self._units_at_a_time(memory_mib) if physical_batch_size == "auto" else physical_batch_size
        )
        self._steps_begun = 0
        self._unfinished: BegunStep | None = None
        self._drawn_again: DpEvent | None = None
        self._identity, self._reproducible = identity, key.reproducible
        self._state = self._checked_first_state(key)
        keep_what_is_freed()
        self._release = self._budget.open(
            "training run",
            noise=plan.noise,
            adjacency=plan.adjacency,
            key=key,
            event=plan.event,
            steps=plan.steps,
            run=identity,
        )
        self._streams = Streams.of(self._release.key)
        self._batches, self._records = self._reading_ahead(0)

    @property
    def steps(self) -> int:
        """The number of steps that have begun. A step is counted before its noise is drawn."""
        return self._steps_begun

    @property
    def number(self) -> int:
        """The number of this release in its budget. All randomness of the run is a function of it and the key."""
        return self._release.number

    @property
    def expected_batch_size(self) -> float:
        """The public number by which to divide a gradient sum."""
        return self.plan.sampler.expected_batch_size(self._records.num_units)

    @property
    def state(self) -> StepState:
        """The states of encoding and noise before the next step."""
        return self._state

    @property
    def coding_state(self) -> State:
        """What encoding and noise have learned from past releases, as one mapping for a checkpoint."""
        return self._state.by_name()

    @property
    def event(self) -> DpEvent:
        """The privacy event of this run: that of its plan, and of any steps that had to be drawn again."""
        return self._with_drawn_again(self.plan.event)

    @property
    def event_so_far(self) -> DpEvent:
        """The event of the steps begun so far. For display only: the guarantee is that of all planned steps."""
        return self._with_drawn_again(self.plan.sampler.compose(self.plan.noise.event, self.steps))

    def continue_at(self, step: int, coding_state: State, *, drawn_again: int = 0) -> None:
        """Continues where an earlier process stopped, with `step` as the next step.

        Guarantee: noise is a function of (key, step), so a step that was begun before may be repeated only if it is
        equal bit for bit: same key, parameters, data and arithmetic. If it may differ, the key must be a new one, and
        the steps that may have begun under the old key are counted as `drawn_again` steps on top of those of the plan.
        `Checkpoints` decides which of the two cases holds.
        """
        if self._steps_begun:
            raise UsageError(f"call continue_at before the first step of a run, this run has begun {self.steps}.")
        validate.count(at_least=0, at_most=self.plan.steps, step=step)
        validate.instance(Mapping, coding_state=coding_state)
        validate.count(at_least=0, drawn_again=drawn_again)
        if drawn_again:
            again = self.plan.sampler.compose(self.plan.noise.event, drawn_again)
            self._budget.charge(again, self.plan.adjacency, what="steps drawn again", run=self._identity)
            self._drawn_again = again
        self._state = StepState.of_names(coding_state)
        self._steps_begun = step
        self._batches, self._records = self._reading_ahead(step)

    def __len__(self) -> int:
        return self.plan.steps

    def __reduce__(self) -> NoReturn:
        """Refuses `copy` and `pickle`: a copy would draw the same noise for another sum."""
        raise UsageError("a run cannot be copied or pickled: both would draw the same noise. Make another run.")

    def __iter__(self) -> Iterator[Private]:
        return self

    def __next__(self) -> Private:
        joined = self._next_batch()
        number, self._unfinished = self._count_step(), None
        private, self._state = step(
            self.plan,
            self._model,
            self._records,
            self._state,
            number,
            joined,
            streams=self._streams,
            release=self._release,
            units_at_a_time=self.physical_batch_size,
        )
        return private

    def begin(self) -> BegunStep:
        """Counts the next step and draws its units, for a caller that computes the contributions elsewhere.

        Guarantee: that of the plan, if the caller releases nothing but the result of `finish`, and passes to `bounded`
        each unit's own contribution (see `PerExample`). Iteration over the run ensures both.
        """
        self._unfinished = begin(self.plan, self._state, self._count_step(), self._next_batch(), self._streams)
        return self._unfinished

    def drawn(self, begun: BegunStep, indices: Tensor) -> tuple[Batch, Tensor]:
        """The records of some of the units that joined, and one seed per row."""
        return gathered(self._records, indices, begun.step, self._streams)

    def bounded(self, begun: BegunStep, each: PerExample) -> BoundedSum:
        """The bounded sum over some of the units that joined. Sums of disjoint units may be added up."""
        return clipped(self.plan, begun, each)

    def finish(self, begun: BegunStep, total: BoundedSum) -> Private:
        """Adds the step's noise to the sum over all units, once: a second sum would reveal their difference."""
        if begun is not self._unfinished:
            raise UsageError(
                "this step has been finished, or another step was begun since: call begin, and finish once for each."
            )
        self._unfinished = None
        private, self._state = finish(begun, total, self._state, self._release)
        return private

    def next_from(self, start: Tensor) -> Private:
        """Takes the next step with `start` added to its sum before the noise, so that all three are rounded together.

        For a run that reveals its last iterate only: if the iterate were added to a rounded release, its last bits
        would show. `start` may depend on earlier steps, but not on the units that join this one.
        """
        begun = self.begin()
        total = bounded_sum(self.plan, self._model, self._records, begun, self._streams, self.physical_batch_size)
        return self.finish(begun, total.shifted(start))

    def noise_from(self, start: Tensor, step: int) -> Private:
        """The release of an empty step after all planned ones: `start` plus noise, rounded together."""
        validate.count(at_least=self.plan.steps, step=step)
        return self._release.add(BoundedSum(start, self.plan.clip.bound, self.layout), step)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of the guarantee."""
        assumed: tuple[str, ...] = ("nothing else is released from the same data outside this run's budget",)
        if self._reproducible:
            assumed += (SEED_STAYS_SECRET,)
        if self._records.buckets is not None:
            assumed += (ROUNDED_ALIKE,)
        return assumed + arithmetic_of(self.plan.noise)

    def guarantee(self, *, delta: float) -> Guarantee:
        """The guarantee of all planned steps. It holds if the run is stopped early, whatever the reason to stop."""
        assumed = self.assumptions
        releases = len(self._budget.releases)
        if releases > (1 if self._drawn_again is None else 2):
            assumed += (f"this run is counted alone: its budget holds {releases} releases, and has a guarantee",)
        unit, adjacency = self._records.unit, self.plan.adjacency
        promise = Guarantee.of(self.event, adjacency, delta=delta, unit=unit, assumptions=assumed)
        self.plan.check_noise(delta)
        return promise

    def _reading_ahead(self, start: int) -> tuple[Iterator[Indices], Records]:
        """The batches from step `start` on, and the records that read the rows of later ones in advance."""
        records, size = self._budget.records, self.physical_batch_size
        own, later = tee(self.plan.sampler.batches(records.num_units, self._streams.sampling, start))
        gathered = (
            (part, ReadAt(self._streams.rows, number))
            for number, batch in enumerate(later, start)
            for part in read_together(records, torch.from_numpy(batch), size)
        )
        parts = len(read_together(records, torch.arange(ceil(self.expected_batch_size)), size))
        return own, records.read_ahead(gathered, requests_per_step=parts)

    def _next_batch(self) -> Tensor:
        return torch.from_numpy(next(self._batches))

    def _count_step(self) -> int:
        self._release.check_process()
        if self._steps_begun >= self.plan.steps:
            raise UsageError(f"all {self.plan.steps} steps of the plan have been taken: make a new run for more.")
        self._steps_begun += 1
        return self._steps_begun - 1

    def _with_drawn_again(self, event: DpEvent) -> DpEvent:
        return event if self._drawn_again is None else ComposedDpEvent([event, self._drawn_again])

    def _units_at_a_time(self, memory_mib: int) -> int:
        bytes_per_row = self.plan.contribution.bytes_per_row(self._model, self._records)
        return units_at_a_time(
            self.layout,
            bytes_per_unit=bytes_per_row * self._records.rows_per_unit,
            expected_batch_size=self.expected_batch_size,
            memory_mib=memory_mib,
        )

    def _checked_first_state(self, key: Key) -> StepState:
        """The state before the first step. An empty step is computed with it and dropped.

        So a stage that was made for another model is refused before anything is charged.
        """
        plan, nowhere = self.plan, key.stream("a step of nobody")  # no release draws from this stream
        state = StepState(plan.encoding.init(self.layout))
        streams = Streams(nowhere, nowhere, nowhere, nowhere)
        empty = sum_of_nobody(plan, self._model, self._records, state, streams)
        if not isinstance(plan.noise, LearningNoise):
            return state
        codec, known = plan.encoding.codec(state.encoding, 0, nowhere), plan.noise.init(empty.layout)
        expected = plan.noise.expected_norm(empty.bound, NoiseAt(nowhere, 0, known, codec.encode))
        dimension, batch_size = empty.layout.size, self.expected_batch_size
        warn_if_hopeless(expected, bound=empty.bound, dimension=dimension, batch_size=batch_size)
        return StepState(state.encoding, known)
