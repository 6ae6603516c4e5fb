"""A run: a plan carried out on one data set, step by step, and what it promises.

A `PrivateRun` hands out `Private` gradients: never batches, losses or norms. The step itself is a function, in
`sordino.kernel.step`; here are the iterator, the count of steps and the budget around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NoReturn

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Guarantee
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.encoding import State
from sordino.kernel.micro_batches import MEMORY_MIB, keep_what_is_freed, units_at_a_time
from sordino.kernel.noise import LearningNoise, NoiseAt, arithmetic_of, warn_if_hopeless
from sordino.kernel.randomness import Key
from sordino.kernel.records import Batch, Data
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
    step,
    sum_of_nobody,
)


class PrivateRun:
    """One plan carried out on one data set. Iterate over it for the `Private` gradient of each step.

    The gradient is taken at the parameters that the model has when the step is asked for. `physical_batch_size` is how
    many units are held in memory at a time, "auto" as many as are fastest within about `memory_mib`; it changes nothing
    else. With a `seed` the run is reproducible, and its guarantee says that who knows the seed can remove the noise.
    Two runs on one `Budget` draw different noise, also with one seed. A run that is taken up again has the `identity`
    that it had, and with it its noise; a budget that holds it is not charged again. `continue_at` says when it may be.

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
        self._batches = plan.sampler.batches(self._records.num_units, self._streams.sampling)

    @property
    def steps(self) -> int:
        """How many steps have begun. A step counts from before its noise is drawn."""
        return self._steps_begun

    @property
    def number(self) -> int:
        """Which release of its budget the run is. With the key it says where all its randomness comes from."""
        return self._release.number

    @property
    def expected_batch_size(self) -> float:
        """The public number to divide a gradient sum by."""
        return self.plan.sampler.expected_batch_size(self._records.num_units)

    @property
    def state(self) -> StepState:
        """What the encoding and the noise know before the next step."""
        return self._state

    @property
    def coding_state(self) -> State:
        """What the encoding and the noise have learnt from past releases. It belongs into a checkpoint."""
        return self._state.by_name()

    @property
    def event(self) -> DpEvent:
        """What this run is worth: its plan, and whatever steps had to be drawn again."""
        return self._with_drawn_again(self.plan.event)

    @property
    def event_so_far(self) -> DpEvent:
        """What the steps begun so far are worth. A display: the guarantee is that of all steps planned."""
        return self._with_drawn_again(self.plan.sampler.compose(self.plan.noise.event, self.steps))

    def continue_at(self, step: int, coding_state: State, *, drawn_again: int = 0) -> None:
        """Goes on where an earlier process stopped, whose step `step` was the next.

        Guarantee: noise is a function of (key, step), so a step that was begun before may be taken again only if it
        is bit for bit the same: same key, parameters, data and arithmetic. If it may differ, the key must be a new
        one, and what may have been begun under the old one is counted by `drawn_again` steps on top of the plan's.
        `Checkpoints` decides which of the two holds.
        """
        if self._steps_begun:
            raise UsageError(f"a run can be continued before its first step only, this one has begun {self.steps}.")
        validate.count(at_least=0, at_most=self.plan.steps, step=step)
        validate.instance(Mapping, coding_state=coding_state)
        validate.count(at_least=0, drawn_again=drawn_again)
        if drawn_again:
            again = self.plan.sampler.compose(self.plan.noise.event, drawn_again)
            self._budget.charge(again, self.plan.adjacency, what="steps drawn again", run=self._identity)
            self._drawn_again = again
        self._state = StepState.of_names(coding_state)
        self._steps_begun = step
        self._batches = self.plan.sampler.batches(self._records.num_units, self._streams.sampling, start=step)

    def __len__(self) -> int:
        return self.plan.steps

    def __reduce__(self) -> NoReturn:
        """No copy, whether by `copy` or by `pickle`: it would draw the same noise for another sum."""
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
        """Counts the next step and says who joins it, for a driver that computes the contributions elsewhere.

        Guarantee: that of the plan, if all that leaves the driver is what `finish` returns, and what is clipped by
        `bounded` is each unit's own contribution (see `PerExample`). Iterating over the run does both by itself.
        """
        self._unfinished = begin(self.plan, self._state, self._count_step(), self._next_batch(), self._streams)
        return self._unfinished

    def drawn(self, begun: BegunStep, indices: Tensor) -> tuple[Batch, Tensor]:
        """The records of some of the units that joined, and a seed per row."""
        return gathered(self._records, indices, begun.step, self._streams)

    def bounded(self, begun: BegunStep, each: PerExample) -> BoundedSum:
        """What some of the units that joined add together. Sums of disjoint units may be added up."""
        return clipped(self.plan, begun, each)

    def finish(self, begun: BegunStep, total: BoundedSum) -> Private:
        """Adds the step's noise to the sum of all who joined, once: a second sum would show their difference."""
        if begun is not self._unfinished:
            raise UsageError("this step has been finished, or another one was begun since: a step has one sum.")
        self._unfinished = None
        private, self._state = finish(begun, total, self._state, self._release)
        return private

    def next_from(self, start: Tensor) -> Private:
        """The next step, with `start` added to its sum before the noise, so that all three are rounded together.

        For a run that shows its last iterate only: adding the iterate to a release that was rounded alone would show
        the iterate's last bits. `start` may depend on earlier steps, and not on who joins this one.
        """
        begun = self.begin()
        total = bounded_sum(self.plan, self._model, self._records, begun, self._streams, self.physical_batch_size)
        return self.finish(begun, total.shifted(start))

    def noise_from(self, start: Tensor, step: int) -> Private:
        """What a step after all planned ones releases, in which nobody joins: `start` and noise, rounded together."""
        validate.count(at_least=self.plan.steps, step=step)
        return self._release.add(BoundedSum(start, self.plan.clip.bound, self.layout), step)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee takes for granted."""
        assumed: tuple[str, ...] = ("nothing else is released from the same data outside this run's budget",)
        if self._reproducible:
            assumed += (SEED_STAYS_SECRET,)
        return assumed + arithmetic_of(self.plan.noise)

    def guarantee(self, *, delta: float) -> Guarantee:
        """What all planned steps promise. Stopping early because of what was seen does not make it smaller."""
        assumed = self.assumptions
        releases = len(self._budget.releases)
        if releases > (1 if self._drawn_again is None else 2):
            assumed += (f"this run is counted alone: its budget holds {releases} releases, and has a guarantee",)
        unit, adjacency = self._records.unit, self.plan.adjacency
        promise = Guarantee.of(self.event, adjacency, delta=delta, unit=unit, assumptions=assumed)
        self.plan.check_noise(delta)
        return promise

    def _next_batch(self) -> Tensor:
        return torch.from_numpy(next(self._batches))

    def _count_step(self) -> int:
        self._release.check_process()
        if self._steps_begun >= self.plan.steps:
            raise UsageError(f"the plan has {self.plan.steps} steps and all have been taken.")
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
        """The state before the first step, with which a step of nobody is taken and thrown away.

        So a stage that was made for another model is refused before any charge.
        """
        plan, nowhere = self.plan, key.stream("a step of nobody")  # no release draws from it
        state = StepState(plan.encoding.init(self.layout))
        streams = Streams(nowhere, nowhere, nowhere, nowhere)
        nobody = sum_of_nobody(plan, self._model, self._records, state, streams)
        if not isinstance(plan.noise, LearningNoise):
            return state
        codec, known = plan.encoding.codec(state.encoding, 0, nowhere), plan.noise.init(nobody.layout)
        expected = plan.noise.expected_norm(nobody.bound, NoiseAt(nowhere, 0, known, codec.encode))
        dimension, batch_size = nobody.layout.size, self.expected_batch_size
        warn_if_hopeless(expected, bound=nobody.bound, dimension=dimension, batch_size=batch_size)
        return StepState(state.encoding, known)
