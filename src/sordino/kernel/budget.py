"""One data set, one budget: everything released from the data is composed here, and gets its noise here.

Guarantee: noise is a function of (key, number of the release, step). No two releases of a budget have one number, so
two releases with one seed on one budget draw independent noise, and share neither sampling nor coding nor dropout. A
run that is taken up again keeps its number: steps that are repeated have the noise that they had.
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
from sordino.accounting.guarantee import rounded_up
from sordino.accounting.tightest import check_delta
from sordino.errors import BudgetError, UsageError
from sordino.kernel.noise import LearningNoise, Noise, NoiseAt, check_tail
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Data, Records, as_records
from sordino.kernel.states import BoundedSum, PerExample, Private

_SMALLEST_DELTA = 1e-12  # for which the generator's noise is checked where neither release nor budget names one


@dataclass(frozen=True)
class RunIdentity:
    """Tells a run from all others, wherever it is taken up: a random name, and its number once it is charged."""

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
    """The number of a release, and the key that it draws everything from."""

    number: int
    key: Key = field(repr=False)


class Release:
    """A release that has been charged, and the only way to add its noise: once in each step, in rising order.

    Guarantee: the noise of step t is a function of (key, number of the release, t), and each is drawn once.
    """

    def __init__(self, noise: Noise, address: Address) -> None:
        self.noise, self.number, self.key = noise, address.number, address.key
        self._process, self._next, self._drawing = os.getpid(), 0, Lock()
        self._noise = self.key.stream("noise")

    def stream(self, name: str) -> Stream:
        """What the release draws beside its noise: who joins, coding, dropout."""
        return self.key.stream(name)

    def noise_at(
        self,
        step: int,
        state: Mapping[str, Tensor] | None = None,
        encode: Callable[[PerExample], PerExample] = lambda each: each,
    ) -> NoiseAt:
        """Where the noise of a step comes from."""
        return NoiseAt(self._noise, step, state or {}, encode)

    def add(self, total: BoundedSum, step: int = 0) -> Private:
        """Adds the noise of a step to its sum. A second sum with this noise would show the difference of the two."""
        self._draw_once(step)
        return self.noise.add(total, self.noise_at(step))

    def add_and_learn(
        self, total: BoundedSum, step: int, state: Mapping[str, Tensor], encode: Callable[[PerExample], PerExample]
    ) -> tuple[Private, Mapping[str, Tensor]]:
        """Adds the noise of a step as `add` does, for noise that may learn: with what it knows then."""
        self._draw_once(step)
        at = self.noise_at(step, state, encode)
        if isinstance(self.noise, LearningNoise):
            return self.noise.add_and_learn(total, at)
        return self.noise.add(total, at), state

    def _draw_once(self, step: int) -> None:
        self.check_process()
        with self._drawing:
            if step < self._next:
                raise UsageError(f"the noise of step {step} has been drawn: a step has one sum.")
            self._next = step + 1

    def check_process(self) -> None:
        """Refuses to go on in a forked process, which would draw the noise that its parent draws."""
        _check_process(self._process, "a release cannot be continued in a forked process: it would draw the same noise")

    def __reduce__(self) -> NoReturn:
        raise UsageError("a release cannot be copied or pickled: both would draw the same noise. Make another one.")


class Budget:
    """Holds the data, adds up the events of all that is released from it, and adds the noise.

    With `epsilon` and `delta` it is a limit: a release that would exceed it is refused before the data is touched. A
    release is charged when it is planned, and stays charged if it is stopped early. A budget belongs to the process
    that made it: a forked one may not spend it.

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
            raise UsageError("a limit needs both epsilon and delta, or neither.")
        if epsilon is not None and delta is not None:
            validate.positive(epsilon=epsilon)
            check_delta(delta, is_pure=True)  # with 0, whatever is not pure is refused when it is charged
        self.records: Records = as_records(data)
        self.epsilon, self.delta = epsilon, delta
        self._charges: list[_Charge] = []
        self._noises: list[tuple[Noise, int]] = []  # of the releases made here, with the number of steps of each
        self._next_number = 0
        self._addresses: dict[bytes, _User] = {}  # who uses which, by a hash of its key
        self._adjacency: Adjacency | None = None
        self._charging = Lock()  # two threads that each see room for one release must not both take it
        self._process = os.getpid()

    @property
    def event(self) -> DpEvent:
        """All releases so far, composed."""
        return ComposedDpEvent([charge.event for charge in self._charges])

    def event_beside(self, run: RunIdentity | None) -> DpEvent:
        """All releases so far but those of this run, composed: what is there when it is calibrated."""
        name = None if run is None else run.name
        return ComposedDpEvent([charge.event for charge in self._charges if charge.run != name])

    @property
    def releases(self) -> tuple[str, ...]:
        """What was released, in order."""
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

        `event` is what it is worth, that of the noise unless said. The end of the generator's range is checked at
        `delta`, at that of the budget unless said.

        >>> import torch
        >>> from sordino.kernel.noise import Gaussian
        >>> from sordino.kernel.states import Layout
        >>> budget = Budget((torch.ones(9, 2), torch.zeros(9)))
        >>> count = lambda: BoundedSum(torch.tensor([9.0]), bound=1.0, layout=Layout(("count",), ((1,),)))
        >>> given = {"noise": Gaussian(4.0), "adjacency": Adjacency.ZERO_OUT, "key": Key.from_seed(0)}
        >>> one, other = (budget.release("count", total_of=count, **given) for _ in range(2))
        >>> bool(one.value == other.value)  # one seed, and yet another noise
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
        """Charges for a release of many steps, and gives what adds its noise.

        Without a `delta`, here or in the budget, the end of the generator's range is checked by whoever promises.
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
        """Charges for what draws its noise by itself, and gives the key to draw it from, which nothing else has."""
        user = _User("" if run is None else run.name, key.reproducible)
        if run is not None and run.number is not None:
            if self._addresses.get(_digest(key.of_release(run.number)), user) != user:
                raise UsageError(
                    f"the {what} is release {run.number} of its seed, and so is another release of this budget: both "
                    "would have the same noise. Resume it before anything else is released, or give that another seed."
                )
        number = self.charge(event, adjacency, what=what, run=run)
        address = Address(number, key.of_release(number))
        self._addresses[_digest(address.key)] = user
        return address

    def charge(self, event: DpEvent, adjacency: Adjacency, *, what: str, run: RunIdentity | None = None) -> int:
        """Adds a release, or refuses it, and numbers it. Nothing may be computed from the data before it is charged.

        What this budget holds of a `run` already is not charged again. A run that has a number keeps it.
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
        """Whether something of this run was charged here."""
        return any(charge.run == run.name for charge in self._charges)

    def check(self, event: DpEvent, adjacency: Adjacency, *, what: str) -> None:
        """Refuses what `charge` would refuse."""
        self.check_process()
        with self._charging:
            self._refuse_if_too_much(event, adjacency, what)

    def guarantee(self, *, delta: float, assumptions: tuple[str, ...] = ()) -> Guarantee:
        """What all releases together promise."""
        adjacency = self._adjacency or Adjacency.ZERO_OUT
        for noise, steps in self._noises:
            check_tail(noise, adjacency, steps=steps, delta=delta)
        unit = self.records.unit
        if any(user.has_seed for user in self._addresses.values()):
            assumptions = tuple(dict.fromkeys((*assumptions, SEED_STAYS_SECRET)))
        return Guarantee.of(self.event, adjacency, delta=delta, unit=unit, assumptions=assumptions)

    def check_process(self) -> None:
        """Refuses to go on in a forked process: what that spends, the budget of its parent would not know."""
        _check_process(self._process, "a budget cannot be spent in a forked process: its parent would not count it")

    def __deepcopy__(self, memo: object) -> Budget:
        """The same budget: what holds one is copied with it (scikit-learn does), and goes on spending from it."""
        return self

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a budget cannot be copied, saved or sent to another process, where what is spent would be forgotten: "
            "work in one process (n_jobs=None), and take it off what is to be saved (set_params(budget=None))."
        )

    def _held(self, run: RunIdentity, event: DpEvent) -> int | None:
        """The number of this event of this run, if it was charged. Another event of the run is another charge."""
        return next((each.number for each in self._charges if (each.run, each.event) == (run.name, event)), None)

    def _refuse_if_too_much(self, event: DpEvent, adjacency: Adjacency, what: str) -> None:
        validate.instance(DpEvent, event=event)
        validate.instance(Adjacency, adjacency=adjacency)
        validate.instance(str, what=what)
        if self._adjacency not in (None, adjacency):
            raise UsageError(
                f"one budget has one adjacency: it holds {self._adjacency}, got {adjacency} for the {what}."
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
    """One line of a budget. `run` is the name of the run that it is of, if that may be taken up again."""

    what: str
    event: DpEvent
    number: int
    run: str


@dataclass(frozen=True)
class _User:
    """User of an address: the name of a run, or nothing for other releases, and whether its key is from a seed."""

    run: str
    has_seed: bool


def _digest(key: Key) -> bytes:
    return hashlib.blake2b(b"address", key=key.secret).digest()


def _check_process(process: int, refusal: str) -> None:
    if os.getpid() != process:
        raise UsageError(f"{refusal}. Work in the process that made it.")
