"""The step itself. Read this first.

 indices           PerExample          PerExample          BoundedSum        Private           Private
Sampler --> Contribution --> encode --> Clip (+ sum) --> Noise --> decode --> | any torch optimizer
   |                                                        |                 |
   '-- compose(release, steps) <------------- noise.event --'                 '-- the privacy boundary

A `Plan` is a theorem: the types of its fields are the hypotheses, its event is the conclusion. A `PrivateRun` carries
it out on one data set and hands out `Private` gradients: never batches, losses or norms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, sqrt
from typing import Literal, NoReturn

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Adjacency, Guarantee, Unit
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.clipping import Clip
from sordino.kernel.contribution import Contribution
from sordino.kernel.encoding import Codec, Encoding, State, Unchanged
from sordino.kernel.heap import keep_what_is_freed
from sordino.kernel.noise import LearningNoise, Noise, NoiseAt, arithmetic_of, check_tail, warn_if_hopeless
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Batch, Records
from sordino.kernel.rows import ReadAt
from sordino.kernel.sampling import Indices, Sampler
from sordino.kernel.states import BoundedSum, Layout, PerExample, Private

_MEMORY_MIB = 256
_SMALLEST_MICRO_BATCH, _LARGEST_MICRO_BATCH = 32, 1024
_SLACK = 1.1  # a micro-batch whose size nobody asked for may be larger, where that saves another one
_OF_NOISE = "noise/"  # before the names of what noise has learnt, among those of the encoding

# What a micro-batch costs whatever its size, in bytes of activations that take twenty times as long: per parameter
# tensor for the operations around it, and per parameter for the passes over its sum.
_BYTES_PER_TENSOR, _BYTES_PER_PARAMETER = 3 << 20, 40


@dataclass(frozen=True)
class Plan:
    """What is released in each step, and how often.

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
        """Stages that must be the same when a run is resumed. The contribution is rehearsed instead."""
        return (self.sampler, self.clip, self.noise, self.encoding)

    @property
    def steps(self) -> int:
        return self.sampler.steps

    @property
    def adjacency(self) -> Adjacency:
        return self.sampler.adjacency

    @property
    def event(self) -> DpEvent:
        """What all steps together are worth. Derived from the stages; there is nothing to pass."""
        return self.sampler.compose(self.noise.event, self.steps)

    def guarantee(self, *, delta: float, unit: Unit = Unit.EXAMPLE, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """What the plan promises once it is carried out, whether or not it is stopped early."""
        promise = Guarantee.of(self.event, self.adjacency, delta=delta, unit=unit, assumptions=assumptions)
        self.check_noise(delta)
        return promise

    def check_noise(self, delta: float) -> None:
        """Refuses a plan that the generator cannot carry out at this delta."""
        check_tail(self.noise, self.adjacency, steps=self.steps, delta=delta)


@dataclass(frozen=True, repr=False)
class Begun:
    """A step that has been counted: who joins it, and the codec that its sum is made with. Its indices are private."""

    step: int
    indices: Tensor
    codec: Codec


def row_seeds(dropout: Stream, step: int, records: Records, indices: Tensor, batch: Batch) -> Tensor:
    """One seed per row for what the model draws, a function of step, unit and row within the unit only."""
    base = int(dropout.words(1, step=step).astype("int64")[0])
    if records.rows_per_unit == 1:
        return base + (indices << 20)
    rows = torch.arange(len(batch.units))
    first_row = torch.full((batch.num_units,), len(rows)).scatter_reduce(0, batch.units, rows, "amin")
    row_of_unit = rows - first_row[batch.units]
    return base + (indices[batch.units] << 20) + row_of_unit


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
        data: object,
        *,
        seed: int | None = None,
        key: Key | None = None,
        identity: RunIdentity | None = None,
        physical_batch_size: int | Literal["auto"] = "auto",
        memory_mib: int = _MEMORY_MIB,
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
        self._records = self._budget.records
        plan.sampler.check(self._records.num_units)
        plan.contribution.check(model, self._records)
        self._model = model
        self.physical_batch_size = (
            self._units_at_a_time(memory_mib) if physical_batch_size == "auto" else physical_batch_size
        )
        self._coding_state = plan.encoding.init(self.layout)
        self._steps_begun = 0
        self._unfinished: Begun | None = None
        self._drawn_again: DpEvent | None = None
        self._identity, self._reproducible = identity, key.reproducible
        self._noise_state = self._check_stages_fit(key)
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
        self._sampling, self._coding = self._release.stream("sampling"), self._release.stream("coding")
        self._dropout, self._rows = self._release.stream("dropout"), self._release.stream("rows")
        self._batches = plan.sampler.batches(self._records.num_units, self._sampling)

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
    def coding_state(self) -> State:
        """What the encoding and the noise have learnt from past releases. It belongs into a checkpoint."""
        return {**self._coding_state, **{_OF_NOISE + name: x for name, x in self._noise_state.items()}}

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
        learnt = {name for name in coding_state if name.startswith(_OF_NOISE)}
        self._noise_state = {name.removeprefix(_OF_NOISE): coding_state[name] for name in learnt}
        self._coding_state = {name: x for name, x in coding_state.items() if name not in learnt}
        self._steps_begun = step
        self._batches = self.plan.sampler.batches(self._records.num_units, self._sampling, start=step)

    def __len__(self) -> int:
        return self.plan.steps

    def __reduce__(self) -> NoReturn:
        """No copy, whether by `copy` or by `pickle`: it would draw the same noise for another sum."""
        raise UsageError("a run cannot be copied or pickled: both would draw the same noise. Make another run.")

    def __iter__(self) -> Iterator[Private]:
        return self

    def __next__(self) -> Private:
        return self._private_gradient(next(self._batches))

    def begin(self) -> Begun:
        """Counts the next step and says who joins it, for a driver that computes the contributions elsewhere.

        Guarantee: that of the plan, if all that leaves the driver is what `finish` returns, and what is clipped by
        `bounded` is each unit's own contribution (see `PerExample`). Iterating over the run does both by itself.
        """
        return self._begun(self._begin_step(), next(self._batches))

    def drawn(self, begun: Begun, indices: Tensor) -> tuple[Batch, Tensor]:
        """The records of some of the units that joined, and a seed per row."""
        batch = self._records.gather(indices, ReadAt(self._rows, begun.step))
        return batch, self._seeds(indices, batch, begun.step)

    def bounded(self, begun: Begun, each: PerExample) -> BoundedSum:
        """What some of the units that joined add together. Sums of disjoint units may be added up."""
        return self.plan.clip(begun.codec.encode(each))

    def finish(self, begun: Begun, total: BoundedSum) -> Private:
        """Adds the step's noise to the sum of all who joined, once: a second sum would show their difference."""
        if begun is not self._unfinished:
            raise UsageError("this step has been finished, or another one was begun since: a step has one sum.")
        self._unfinished = None
        at, known = begun.step, self._noise_state
        released, self._noise_state = self._release.add_and_learn(total, at, known, begun.codec.encode)
        private, self._coding_state = begun.codec.decode(released)
        return private

    def next_from(self, start: Tensor) -> Private:
        """The next step, with `start` added to its sum before the noise, so that all three are rounded together.

        For a run that shows its last iterate only: adding the iterate to a release that was rounded alone would show
        the iterate's last bits. `start` may depend on earlier steps, and not on who joins this one.
        """
        begun = self.begin()
        return self.finish(begun, self._bounded_sum(begun.indices, begun.codec, begun.step).shifted(start))

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

    def _private_gradient(self, indices: Indices) -> Private:
        begun = self._begun(self._begin_step(), indices)
        return self.finish(begun, self._bounded_sum(begun.indices, begun.codec, begun.step))

    def _begun(self, step: int, indices: Indices) -> Begun:
        codec = self.plan.encoding.codec(self._coding_state, step, self._coding)
        self._unfinished = Begun(step, torch.from_numpy(indices), codec)
        return self._unfinished

    def _bounded_sum(self, indices: Tensor, codec: Codec, step: int) -> BoundedSum:
        """Adds up physical micro-batches: they lie below the codec and the step count and can change neither."""
        # An empty batch has one empty part, so that a sum is always made. A small part at the end would cost nearly as
        # much as a large one: all are alike.
        first, *others = torch.tensor_split(indices, max(1, ceil(len(indices) / self.physical_batch_size)))
        total = self._micro_batch(first, codec, step)
        for part in others:
            total += self._micro_batch(part, codec, step)
        return total

    def _micro_batch(self, indices: Tensor, codec: Codec, step: int) -> BoundedSum:
        batch = self._records.gather(indices, ReadAt(self._rows, step))
        each = self.plan.contribution.of(self._model, batch, self._seeds(indices, batch, step))
        return self.plan.clip(codec.encode(each))

    def _seeds(self, indices: Tensor, batch: Batch, step: int) -> Tensor:
        return row_seeds(self._dropout, step, self._records, indices, batch)

    def _with_drawn_again(self, event: DpEvent) -> DpEvent:
        return event if self._drawn_again is None else ComposedDpEvent([event, self._drawn_again])

    def _units_at_a_time(self, memory_mib: int) -> int:
        """As many as fit, or a little more if a step then has one micro-batch less. As public as the expected size."""
        units = self._units_that_fit(memory_mib)
        likely_at_most = self.expected_batch_size + 3 * sqrt(self.expected_batch_size)
        micro_batches = max(1, ceil(likely_at_most / (_SLACK * units)))
        return max(units, min(int(_SLACK * units), ceil(likely_at_most / micro_batches)))

    def _units_that_fit(self, memory_mib: int) -> int:
        """Public: it depends on the model and on the shape of the data only.

        So many that what each micro-batch costs anyway is a twentieth of it, if they fit. More would not be faster but
        slower: the system takes large buffers back, and hands them out again page by page.
        """
        bytes_per_row = self.plan.contribution.bytes_per_row(self._model, self._records)
        bytes_per_unit = max(1, bytes_per_row * self._records.rows_per_unit)
        enough = _BYTES_PER_TENSOR * len(self.layout.names) + _BYTES_PER_PARAMETER * self.layout.size
        units = min((memory_mib << 20) // bytes_per_unit, max(_SMALLEST_MICRO_BATCH, enough // bytes_per_unit))
        even = units - units % torch.get_num_threads()  # threads share the units of a micro-batch
        return max(1, min(_LARGEST_MICRO_BATCH, even))

    def _noise_at(self, step: int, codec: Codec) -> NoiseAt:
        return self._release.noise_at(step, self._noise_state, codec.encode)

    def _check_stages_fit(self, key: Key) -> State:
        """A step of nobody, thrown away: a stage that was made for another model is refused before any charge.

        What is left of it is what the noise knows before the first step.
        """
        nowhere = key.stream("a step of nobody")  # no release draws from it
        noise, codec = self.plan.noise, self.plan.encoding.codec(self._coding_state, 0, nowhere)
        self._dropout = self._rows = nowhere
        nobody = self._bounded_sum(torch.zeros(0, dtype=torch.int64), codec, 0)
        if not isinstance(noise, LearningNoise):
            return {}
        known = noise.init(nobody.layout)
        expected = noise.expected_norm(nobody.bound, NoiseAt(nowhere, 0, known, codec.encode))
        dimension, batch_size = nobody.layout.size, self.expected_batch_size
        warn_if_hopeless(expected, bound=nobody.bound, dimension=dimension, batch_size=batch_size)
        return known

    def _begin_step(self) -> int:
        self._release.check_process()
        if self._steps_begun >= self.plan.steps:
            raise UsageError(f"the plan has {self.plan.steps} steps and all have been taken.")
        step = self._steps_begun
        self._steps_begun += 1
        return step
