"""`PrivateRun`: carries out a plan on one dataset, step by step, and has its guarantee.

A `PrivateRun` returns `Private` gradients: never batches, losses or norms. The step itself is a function, in
`sordino.kernel.step`. This file has the iterator, the count of steps and the charge to the budget.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from itertools import tee
from math import ceil
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Guarantee
from sordino.errors import UsageError
from sordino.gradients.loop import RUNS_ALONE, why_alone
from sordino.kernel.buckets import ROUNDED_ALIKE
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.encoding import State
from sordino.kernel.micro_batches import MEMORY_MIB, keep_what_is_freed, units_at_a_time
from sordino.kernel.noise import LearningNoise, NoiseAt, arithmetic_of, check_tail, warn_if_hopeless
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
from sordino.kernel.step_log import RunState, StepLog, identity_of, in_whole_periods

_DRAWN_AGAIN = "steps drawn again"
_LOADED_ONCE = "no other process went on from the saved state of this run, or from an earlier one"
_LOG_IS_WHOLE = "the step log of this run was neither edited nor replaced by an older one"


class PrivateRun:
    """Carries out one plan on one dataset. Iterate over it for the `Private` gradient of each step.

    The gradient is computed at the parameters that the model has when the step is requested. `physical_batch_size` is
    the number of units held in memory at a time, or "auto" for the fastest number within about `memory_mib`; it changes
    nothing else. With a `seed` the run is reproducible, and its guarantee states that anyone who knows the seed can
    remove the noise. Two runs on one `Budget` draw different noise, even with the same seed.

    A run in a loop of your own is saved by `state_dict` and continued by `load_state_dict` in another process. With a
    `step_log`, a file that counts the steps that were begun, the steps to pay for twice are those that were lost.
    `fit` continues otherwise: it gives a run the `identity` that it had, which draws the same noise, and a budget that
    holds it is not charged again (`continue_at`).

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
        step_log: Path | str | None = None,
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
        self._steps_drawn_again, self._is_continued = 0, False
        self._reproducible = key.reproducible
        self._state = self._checked_first_state(key)
        self._log = None if step_log is None else StepLog(step_log, identity_of(plan), seeded=key.reproducible)
        self._name = secrets.token_hex(16) if self._log is None else self._log.run
        if identity is None and self._log is not None:
            identity = RunIdentity(self._name)
        self._identity = identity
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
        if self._log is not None and self._log.begun:  # what holds if the run begins at step 0 once more
            self._note_drawn_again(self._log.spent(plan.sampler.period))

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
            again = self._note_drawn_again(drawn_again)
            self._budget.charge(again, self.plan.adjacency, what=_DRAWN_AGAIN, run=self._identity)
        self._state = StepState.of_names(coding_state)
        self._steps_begun = step
        self._batches, self._records = self._reading_ahead(step)

    def state_dict(self) -> dict[str, Any]:
        """The state before the next step, for `load_state_dict` in another process: numbers, and what releases taught.

        It may leave, like the weights: the key is not in it, and is nowhere but in the memory of this process. Model,
        optimizer and learning-rate scheduler have states of their own, which the loop saves beside it.
        """
        spent = self.plan.steps + self._steps_drawn_again
        seeded = self._reproducible
        return RunState(self._name, identity_of(self.plan), self.steps, spent, seeded, self.coding_state).as_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of an earlier process, under a new key, and charges every step that is paid twice.

        Theorem. Let processes 1, ..., k take steps of one plan, process i those in [a_i, b_i), each under a key of its
        own. Then what they release is an adaptive composition of k independent sequences, and costs no more than the
        periods of the sampler that intersect each [a_i, b_i), added up; every period is counted as often as processes
        intersect it. No step is repeated under an old key, so nothing has to be equal bit for bit: data loading,
        hardware and optimizer may change.

        With a `step_log`, all b_i are on the disk, and this process is counted to the end of the plan. So the price of
        a stop is the steps between the saved state and the stop, rounded to whole periods; a stop right after a save
        costs nothing at period 1. Without one, nobody knows how far the earlier process went, and it is counted to the
        end of the plan too: a state saved after a quarter of the steps costs three quarters of the plan once more. That
        bound assumes that nothing else continues from the same state or an earlier one, and the guarantee says so.

        >>> import tempfile
        >>> import torch.nn.functional as F
        >>> import sordino as so
        >>> model, data = nn.Linear(4, 3), (torch.zeros(20, 4), torch.zeros(20, dtype=torch.int64))
        >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(4.0)
        >>> plan = so.Plan(so.Poisson(rate=0.5, steps=8), gradient, clip, noise)
        >>> path = Path(tempfile.mkdtemp()) / "steps.log"
        >>> run = so.PrivateRun(plan, model, data, step_log=path)
        >>> released = [next(run) for _ in range(3)]
        >>> saved = run.state_dict()
        >>> released.append(next(run))  # lost: the process ends before the next state is saved
        >>> del run
        >>> again = so.PrivateRun(plan, model, data, step_log=path)
        >>> again.load_state_dict(saved)
        >>> again.steps, len(list(again)), again.steps_drawn_again
        (3, 5, 1)
        """
        if self._steps_begun or self._is_continued:
            raise UsageError(f"call load_state_dict once, before the first step of a run; this one is at {self.steps}.")
        saved = RunState.of_dict(state, self.plan)
        if self._log is not None:
            self._log.check(saved)
        self._continue(saved)

    @property
    def steps_drawn_again(self) -> int:
        """The number of steps that are charged on top of those of the plan, because another process began them too."""
        return self._steps_drawn_again

    def __len__(self) -> int:
        return self.plan.steps

    def __reduce__(self) -> NoReturn:
        """Refuses `copy` and `pickle`: a copy would draw the same noise for another sum."""
        raise UsageError("a run cannot be copied or pickled: both would draw the same noise. Make another run.")

    def __iter__(self) -> Iterator[Private]:
        return self

    def __next__(self) -> Private:
        self._count_others()
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
        self._count_others()
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
        if why_alone(self._model) is not None:
            assumed += (RUNS_ALONE,)
        if self._is_continued:
            assumed += (_LOADED_ONCE if self._log is None else _LOG_IS_WHOLE,)
        return assumed + arithmetic_of(self.plan.noise)

    def guarantee(self, *, delta: float) -> Guarantee:
        """The guarantee of all planned steps. It holds if the run is stopped early, whatever the reason to stop."""
        assumed = self.assumptions
        releases = len(self._budget.releases)
        if releases > (1 if self._drawn_again is None and not self._is_continued else 2):
            assumed += (f"this run is counted alone: its budget holds {releases} releases, and has a guarantee",)
        unit, adjacency = self._records.unit, self.plan.adjacency
        promise = Guarantee.of(self.event, adjacency, delta=delta, unit=unit, assumptions=assumed)
        check_tail(self.plan.noise, adjacency, steps=self.plan.steps + self._steps_drawn_again, delta=delta)
        return promise

    def _continue(self, saved: RunState) -> None:
        """Goes on from a state, under a key that no other process has, and charges what it takes beyond the plan."""
        plan, period = self.plan, self.plan.sampler.period
        earlier = saved.spent if self._log is None else self._log.spent(period)
        again = earlier + in_whole_periods(saved.step, plan.steps, period) - plan.steps
        event, noise = plan.sampler.compose(plan.noise.event, again), plan.noise
        key, steps = Key.fresh(), plan.steps + again
        adjacency = plan.adjacency
        self._release = self._budget.open(
            _DRAWN_AGAIN, noise=noise, adjacency=adjacency, key=key, event=event, steps=steps
        )
        self._note_drawn_again(again)
        self._is_continued, self._reproducible = True, self._reproducible or saved.seeded
        self._streams = Streams.of(self._release.key)
        self._state, self._steps_begun = StepState.of_names(saved.coding), saved.step
        self._batches, self._records = self._reading_ahead(saved.step)

    def _count_others(self) -> None:
        """Begins at step 0 again if the step log has steps of earlier processes, and no state of theirs was loaded."""
        if self._log is not None and self._log.begun and not self._is_continued:
            plan = self.plan
            self._continue(RunState(self._name, identity_of(plan), 0, plan.steps, self._log.seeded, self.coding_state))

    def _note_drawn_again(self, steps: int) -> DpEvent:
        """Notes the number of steps on top of those of the plan, and returns their event."""
        event = self.plan.sampler.compose(self.plan.noise.event, steps)
        self._steps_drawn_again, self._drawn_again = steps, event if steps else None
        return event

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
        if self._log is not None:
            self._log.count(self._steps_begun)
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
