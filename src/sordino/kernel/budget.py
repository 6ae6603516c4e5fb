"""The budget of a dataset: everything released from the data is composed here, and gets its noise here.

Guarantee: noise is a function of (key, number of the release, step). Two releases of a budget never have the same
number, so two releases with the same seed on one budget draw independent noise, and share neither sampling nor coding
nor dropout. A resumed run keeps its number: steps that are repeated have the noise that they had.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import NoReturn

from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent, SelfComposedDpEvent
from torch import Tensor

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Adjacency, Guarantee, PureDpEvent, privacy_of, smallest
from sordino.accounting.guarantee import rounded_down, rounded_up
from sordino.accounting.tightest import check_delta
from sordino.errors import BudgetError, SordinoError, UsageError
from sordino.kernel.noise import LearningNoise, Noise, NoiseAt, check_tail
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Data, Records, as_records
from sordino.kernel.states import BoundedSum, PerExample, Private

_SMALLEST_DELTA = 1e-12  # the range of the generator is checked at this delta if neither release nor budget has one


@dataclass(frozen=True)
class RunIdentity:
    """Identifies a run when it is resumed: a random name, and the number of its release once it is charged."""

    name: str
    number: int | None = None

    def __post_init__(self) -> None:
        validate.instance(str, name=self.name)
        if self.number is not None:
            validate.count(at_least=0, at_most=2**63 - 1, number=self.number)

    @classmethod
    def fresh(cls) -> RunIdentity:
        return cls(secrets.token_hex(16))


@dataclass(frozen=True)
class Address:
    """The number of a release, and the key from which it draws everything."""

    number: int
    key: Key = field(repr=False)


class Release:
    """A release that has been charged. It alone can add its noise: once in each step, in rising order.

    Guarantee: the noise of step t is a function of (key, number of the release, t), and is drawn once.
    """

    def __init__(self, noise: Noise, address: Address) -> None:
        self.noise, self.number, self.key = noise, address.number, address.key
        self._process, self._next, self._drawing = os.getpid(), 0, Lock()
        self._noise = self.key.stream("noise")

    def stream(self, name: str) -> Stream:
        """A stream for the other draws of the release: sampling, coding, dropout."""
        return self.key.stream(name)

    def noise_at(
        self,
        step: int,
        state: Mapping[str, Tensor] | None = None,
        encode: Callable[[PerExample], PerExample] = lambda each: each,
    ) -> NoiseAt:
        """The address of the noise of a step."""
        return NoiseAt(self._noise, step, state or {}, encode)

    def add(self, total: BoundedSum, step: int = 0) -> Private:
        """Adds the noise of a step to its sum, once. A second sum with equal noise would reveal their difference."""
        self._draw_once(step)
        return self.noise.add(total, self.noise_at(step))

    def add_and_learn(
        self, total: BoundedSum, step: int, state: Mapping[str, Tensor], encode: Callable[[PerExample], PerExample]
    ) -> tuple[Private, Mapping[str, Tensor]]:
        """Adds the noise of a step, once, for any noise: returns the next state of a `LearningNoise` as well."""
        self._draw_once(step)
        at = self.noise_at(step, state, encode)
        if isinstance(self.noise, LearningNoise):
            return self.noise.add_and_learn(total, at)
        return self.noise.add(total, at), state

    def _draw_once(self, step: int) -> None:
        self.check_process()
        with self._drawing:
            if step < self._next:
                raise UsageError(f"the noise of step {step} has been drawn: noise can be added to one sum only.")
            self._next = step + 1

    def check_process(self) -> None:
        """Refuses to continue in a forked process, which would draw the same noise as its parent."""
        _check_process(self._process, "a release cannot be continued in a forked process: it would draw the same noise")

    def __reduce__(self) -> NoReturn:
        raise UsageError("a release cannot be copied or pickled: both would draw the same noise. Make a new release.")


class Budget:
    """Holds the data, composes the events of all releases from it, and adds their noise.

    With `epsilon` and `delta` it is a limit: a release that would exceed it is refused before the data is touched. A
    release is charged when it is planned, and stays charged if it is stopped early. Only the process that made a budget
    can spend it, not a forked one.

    >>> import torch
    >>> from dp_accounting import GaussianDpEvent
    >>> budget = Budget((torch.zeros(9, 2), torch.zeros(9)), epsilon=1.0, delta=1e-5)
    >>> budget.charge(GaussianDpEvent(5.0), Adjacency.ZERO_OUT, what="mean of the inputs")
    0
    >>> budget.guarantee(delta=1e-5).epsilon < 1.0
    True
    """

    def __init__(self, data: Data, *, epsilon: float | None = None, delta: float | None = None) -> None:
        if (epsilon is None) != (delta is None):
            raise UsageError("a budget needs both epsilon and delta, or neither.")
        if epsilon is not None and delta is not None:
            validate.positive(epsilon=epsilon)
            check_delta(delta, is_pure=True)  # with delta 0, a release that is not pure is refused when it is charged
        self.records: Records = as_records(data)
        self.epsilon, self.delta = epsilon, delta
        self._charges: list[_Charge] = []
        self._noises: list[tuple[Noise, int]] = []  # the noise and the number of steps of each release
        self._next_number = 0
        self._addresses: dict[bytes, _User] = {}  # user of each address, by a hash of its key
        self._adjacency: Adjacency | None = None
        self._charging = Lock()  # if two threads see room for one release, only one may take it
        self._process = os.getpid()

    @property
    def event(self) -> DpEvent:
        """All releases so far, composed."""
        return ComposedDpEvent([charge.event for charge in self._charges])

    @property
    def releases(self) -> tuple[str, ...]:
        """The names of the releases, in order."""
        return tuple(charge.what for charge in self._charges)

    def release(
        self,
        what: str,
        *,
        noise: Noise,
        adjacency: Adjacency,
        key: Key,
        total_of: Callable[[], BoundedSum],
        event: DpEvent | None = None,
        delta: float | None = None,
    ) -> Private:
        """Charges for one sum, computes it, and adds the noise.

        `event` is its privacy event, by default that of the noise. The finite range of the generator is checked at
        `delta`, by default that of the budget.

        >>> import torch
        >>> from sordino.kernel.noise import Gaussian
        >>> from sordino.kernel.states import Layout
        >>> budget = Budget((torch.ones(9, 2), torch.zeros(9)))
        >>> count = lambda: BoundedSum(torch.tensor([9.0]), bound=1.0, layout=Layout(("count",), ((1,),)))
        >>> given = {"noise": Gaussian(4.0), "adjacency": Adjacency.ZERO_OUT, "key": Key.from_seed(0)}
        >>> one, other = (budget.release("count", total_of=count, **given) for _ in range(2))
        >>> bool(one.value == other.value)  # the seeds are equal, and the noises are not
        False
        """
        if delta is None:
            delta = _SMALLEST_DELTA if self.delta is None else self.delta
        opened = self.open(what, noise=noise, adjacency=adjacency, key=key, event=event, delta=delta)
        return opened.add(total_of())

    def open(
        self,
        what: str,
        *,
        noise: Noise,
        adjacency: Adjacency,
        key: Key,
        event: DpEvent | None = None,
        steps: int = 1,
        delta: float | None = None,
        run: RunIdentity | None = None,
    ) -> Release:
        """Charges for a release of one or many steps, and returns the `Release` that adds its noise.

        Without a `delta`, here or in the budget, the finite range of the generator is not checked here, but in each
        `guarantee`.
        """
        delta = self.delta if delta is None else delta
        if delta is not None:
            check_tail(noise, adjacency, steps=steps, delta=delta)
        if event is None:
            event = noise.event if steps == 1 else SelfComposedDpEvent(noise.event, steps)
        address = self.address(event, adjacency, what=what, key=key, run=run)
        self._noises.append((noise, steps))
        return Release(noise, address)

    def address(
        self, event: DpEvent, adjacency: Adjacency, *, what: str, key: Key, run: RunIdentity | None = None
    ) -> Address:
        """Charges for a release that draws its noise itself, and returns the key for it, which no other release has."""
        user = _User("" if run is None else run.name, key.reproducible)
        if run is not None and run.number is not None:
            if self._addresses.get(_digest(key.of_release(run.number)), user) != user:
                raise UsageError(
                    f"the {what} is release {run.number} of its seed, and so is another release of this budget: both "
                    "would have the same noise. Resume the run before anything else is released, or use another seed "
                    "for the other release."
                )
        number = self.charge(event, adjacency, what=what, run=run)
        address = Address(number, key.of_release(number))
        self._addresses[_digest(address.key)] = user
        return address

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        """Adds a release and returns its number, or refuses it. Nothing may be computed from the data before this.

        An event of a `run` that this budget holds already is not charged again. A run that has a number keeps it.
        """
        self.check_process()
        with self._charging:
            held = None if run is None else self._held(run, event)
            if held is not None:
                return held
            self._refuse_if_too_much(event, adjacency, what)
            number = self._next_number if run is None or run.number is None else run.number
            self._adjacency, self._next_number = adjacency, max(self._next_number, number + 1)
            self._charges.append(_Charge(what, event, number, "" if run is None else run.name))
            return number

    def holds(self, run: RunIdentity) -> bool:
        """Whether an event of this run was charged here."""
        return any(charge.run == run.name for charge in self._charges)

    def check(self, event: DpEvent, adjacency: Adjacency, *, what: str) -> None:
        """Refuses a release that `charge` would refuse, and charges nothing."""
        self.check_process()
        with self._charging:
            self._refuse_if_too_much(event, adjacency, what)

    def check_target(
        self,
        event_at: Callable[[float], DpEvent],
        noise_multiplier: float,
        adjacency: Adjacency,
        *,
        what: str,
        delta: float,
        epsilon: float | None = None,
        beside: DpEvent | None = None,
    ) -> None:
        """Refuses what `charge` would refuse of a release with noise for a target, and says which epsilon would fit.

        `event_at` gives the event for a noise multiplier, and the target is at `delta`. `epsilon` is what was asked
        for, by default that of the event. A target includes the event `beside`, which is charged already.

        >>> import torch
        >>> from dp_accounting import GaussianDpEvent
        >>> budget = Budget((torch.zeros(9, 2), torch.zeros(9)), epsilon=4.0, delta=1e-5)
        >>> _ = budget.charge(GaussianDpEvent(2.0), Adjacency.ZERO_OUT, what="mean")
        >>> budget.check_target(GaussianDpEvent, 1.0, Adjacency.ZERO_OUT, what="training run", delta=1e-5)
        Traceback (most recent call last):
            ...
        sordino.errors.BudgetError: epsilon 4.377 for this training run does not fit into the budget: 2.00 of 4 are \
spent at delta 1e-05. Ask for at most 3.281.
        """
        try:
            self.check(event_at(noise_multiplier), adjacency, what=what)
        except BudgetError as error:
            if self.epsilon is None or self.delta is None:
                raise
            limit, limit_delta = self.epsilon, self.delta

            def together(multiplier: float) -> DpEvent:
                return ComposedDpEvent([self.event, event_at(multiplier)])

            def alone(multiplier: float) -> float:
                event = event_at(multiplier)
                return privacy_of(ComposedDpEvent([event, beside]) if beside else event, adjacency).epsilon(delta)

            try:
                fits = alone(smallest(together, adjacency, epsilon=limit, delta=limit_delta))
            except SordinoError:  # nothing would fit, or no bound is known: the error of the check says what there is
                raise error from None
            if epsilon is None:
                epsilon = alone(noise_multiplier)
            spent = privacy_of(self.event, adjacency).epsilon(limit_delta) if self._charges else 0.0
            raise BudgetError(
                f"epsilon {epsilon:.4g} for this {what} does not fit into the budget: {rounded_up(spent, 3)} of "
                f"{limit:g} are spent at delta {limit_delta:g}. Ask for at most {rounded_down(fits)}."
            ) from None

    def guarantee_of(
        self, event: DpEvent, adjacency: Adjacency, *, delta: float, assumptions: tuple[str, ...] = (), own: int = 1
    ) -> Guarantee:
        """What `own` of the releases promise by themselves. It says so where the budget holds others too."""
        releases = len(self.releases)
        if releases > own:
            assumptions += (f"this run is counted alone: its budget holds {releases} releases, and has a guarantee",)
        unit, alone = self.records.unit, ComposedDpEvent([event])
        return Guarantee.of(alone, adjacency, delta=delta, unit=unit, assumptions=assumptions)

    def guarantee(self, *, delta: float, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """The guarantee of all releases together."""
        adjacency = self._adjacency or Adjacency.ZERO_OUT
        for noise, steps in self._noises:
            check_tail(noise, adjacency, steps=steps, delta=delta)
        unit = self.records.unit
        if any(user.has_seed for user in self._addresses.values()):
            assumptions = tuple(dict.fromkeys((*assumptions, SEED_STAYS_SECRET)))
        return Guarantee.of(self.event, adjacency, delta=delta, unit=unit, assumptions=assumptions)

    def check_process(self) -> None:
        """Refuses to continue in a forked process: the budget of its parent would not count what it spends."""
        _check_process(self._process, "a budget cannot be spent in a forked process: its parent would not count it")

    def __deepcopy__(self, memo: object) -> Budget:
        """Returns this budget: a copy of an object that holds it (scikit-learn makes some) spends the same budget."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a budget cannot be copied, saved or sent to another process, because what is spent there would not be "
            "counted here: work in one process (n_jobs=None), and remove the budget from an estimator before you save "
            "it (set_params(budget=None))."
        )

    def _held(self, run: RunIdentity, event: DpEvent) -> int | None:
        """The number of this run if it was charged with this event. Another event of the run is another charge."""
        return next((each.number for each in self._charges if (each.run, each.event) == (run.name, event)), None)

    def _refuse_if_too_much(self, event: DpEvent, adjacency: Adjacency, what: str) -> None:
        validate.instance(DpEvent, event=event)
        validate.instance(Adjacency, adjacency=adjacency)
        validate.instance(str, what=what)
        if self._adjacency not in (None, adjacency):
            raise UsageError(
                f"all releases of a budget have one adjacency: this one has {self._adjacency}, got {adjacency} for the "
                f"{what}."
            )
        if self.epsilon is not None and self.delta is not None:
            total = privacy_of(ComposedDpEvent([self.event, event]), adjacency).epsilon(self.delta)
            if total > self.epsilon:
                spent = privacy_of(self.event, adjacency).epsilon(self.delta) if self._charges else 0.0
                raise BudgetError(
                    f"the {what} would bring epsilon to {rounded_up(total, 6)} under {adjacency} at delta "
                    f"{self.delta:g}; allowed is {self.epsilon:g}, of which {rounded_up(spent)} is spent: "
                    f"{self._what_fits(adjacency, self.epsilon, self.delta)}."
                )

    def _what_fits(self, adjacency: Adjacency, epsilon: float, delta: float) -> str:
        single = GaussianDpEvent if delta else PureDpEvent

        def event(noise_multiplier: float) -> DpEvent:
            return ComposedDpEvent([self.event, single(noise_multiplier)])

        try:
            multiplier = smallest(event, adjacency, epsilon=epsilon, delta=delta)
        except UsageError:
            return "nothing more would fit"
        return f"one {'Gaussian' if delta else 'pure'} release of noise multiplier {rounded_up(multiplier)} would fit"


@dataclass(frozen=True)
class _Charge:
    """One charge of a budget. `run` is the name of its run, if that can be resumed, otherwise an empty string."""

    what: str
    event: DpEvent
    number: int
    run: str


@dataclass(frozen=True)
class _User:
    """User of an address: the name of a run (empty for other releases), and whether its key is from a seed."""

    run: str
    has_seed: bool


def _digest(key: Key) -> bytes:
    return hashlib.blake2b(b"address", key=key.secret).digest()


def _check_process(process: int, refusal: str) -> None:
    if os.getpid() != process:
        raise UsageError(f"{refusal}. Work in the process that made it.")
