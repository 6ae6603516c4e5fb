"""Planning without data: computes one unknown quantity of a training from the others.

A `Question` has the public quantities of a training. Exactly one of noise multiplier, epsilon, steps, delta and batch
size is unknown, and `solve` computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from dp_accounting.dp_event import DpEvent, GaussianDpEvent

from sordino._input import validate
from sordino.accounting import Adjacency, Answer, Guarantee, PureDpEvent, Unit, all_answers, privacy_of, smallest
from sordino.accounting.calibrate import WEAKEST_EPSILON, check_delta_for, check_multiplier, check_target
from sordino.accounting.curves import SMALLEST_DELTA
from sordino.accounting.guarantee import rounded_up
from sordino.errors import UnsupportedEvent, UsageError
from sordino.kernel.sampling import (
    BallsInBins,
    Cyclic,
    FixedSize,
    Poisson,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    steps_for,
    steps_per_epoch,
)
from sordino.recipes.settings import SamplerName as SamplerName
from sordino.recipes.settings import SettingError

_LARGEST_STEPS = 10**8
_DIGITS = 6  # significant digits of a computed value, which is printed in full so that it can be typed in again
_TRUNCATION = 1.5  # largest batch of truncated Poisson over the expected one: truncation then costs almost no epsilon


@dataclass(frozen=True)
class Question:
    """The public quantities of a training. A quantity that is None is unknown."""

    examples: int
    batch_size: int | None = None
    epochs: float | None = None
    steps: int | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    sampler: SamplerName = SamplerName.POISSON
    adjacency: Adjacency | None = None
    unit: Unit = Unit.EXAMPLE
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        validate.count(examples=self.examples)
        validate.instance(SamplerName, sampler=self.sampler)
        validate.instance((Adjacency, type(None)), adjacency=self.adjacency)
        validate.instance(Unit, unit=self.unit)
        if self.batch_size is not None:
            validate.count(at_most=self.examples, batch_size=self.batch_size)
        if self.steps is not None and self.epochs is not None:
            raise SettingError("{epochs} and {steps} exclude each other: give one of them.")
        if self.steps is not None:
            validate.count(steps=self.steps)
        if self.epochs is not None:
            validate.between(0, 1e9, low_open=True, epochs=self.epochs)
        if self.noise_multiplier is not None:
            check_multiplier(self.noise_multiplier)
        if self.epsilon is not None:
            validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.between(SMALLEST_DELTA, 1, high_open=True, delta=self.delta)

    @property
    def effective_adjacency(self) -> Adjacency:
        """The requested adjacency, or the default of the sampler."""
        if self.adjacency is not None:
            return self.adjacency
        return Adjacency.REPLACE_ONE if self.sampler is SamplerName.FIXED_SIZE else Adjacency.ZERO_OUT

    def release(self, noise_multiplier: float) -> DpEvent:
        """The event of one release: Gaussian, or a pure mechanism for every family of optimized noise."""
        family, _, _ = self.noise.partition(":")
        return GaussianDpEvent(noise_multiplier) if family == "gaussian" else PureDpEvent(noise_multiplier)

    @property
    def num_steps(self) -> int:
        """The number of steps, given or computed from epochs and batch size."""
        if self.steps is not None:
            return self.steps
        if self.epochs is None or self.batch_size is None:
            raise UsageError("the number of steps is unknown: give steps, or epochs and batch size.")
        return steps_for(self.epochs, self.examples, self.batch_size)


@dataclass(frozen=True)
class PlanAnswer:
    """A solved question: all quantities, and the guarantee."""

    question: Question
    solved_for: str
    guarantee: Guarantee
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """All quantities of the plan, for JSON."""
        question = self.question
        numbers = asdict(question) | {"steps": question.num_steps, "sample_rate": _rate(question)}
        numbers["epochs"] = question.num_steps * (question.batch_size or 0) / question.examples
        numbers |= self.guarantee.as_dict()
        if question.noise == "gaussian":  # the format of plans is older than other noise
            del numbers["noise"]
        return numbers | {"sampler": question.sampler.value, "solved_for": self.solved_for, "notes": list(self.notes)}


def solve(
    question: Question, *, tight: bool = False, allow_weak: bool = False, allow_large_delta: bool = False
) -> PlanAnswer:
    """Computes the one unknown quantity of a question.

    >>> planned = solve(Question(examples=60_000, batch_size=256, steps=14_062, noise_multiplier=1.1, delta=1e-5))
    >>> planned.solved_for, 2.3714 < planned.guarantee.epsilon < 2.3918
    ('epsilon', True)
    """
    notes: tuple[str, ...] = ()
    if question.delta is None and len(_unknowns(question)) > 1:
        chosen = usual_delta(question.examples)
        question, notes = replace(question, delta=chosen), (delta_note(chosen),)
    unknowns = _unknowns(question)
    if len(unknowns) != 1:
        wanted = "one of batch size, steps (or epochs), noise multiplier, epsilon and delta"
        raise UsageError(f"exactly {wanted} must be left out, got {' and '.join(unknowns) or 'none'} left out.")
    if question.delta is not None:
        check_delta_for(question.examples, question.delta, allow_large_delta=allow_large_delta)
    if question.epsilon is not None:
        check_target(question.epsilon, question.delta or 0.5, allow_weak=allow_weak)
    answered = _SOLVERS[unknowns[0]](question, tight)
    delta = _known(answered.delta)
    check_delta_for(question.examples, delta, allow_large_delta=allow_large_delta)
    check_multiplier(_known(answered.noise_multiplier))
    guarantee = Guarantee.of(
        _event(answered), answered.effective_adjacency, delta=delta, unit=answered.unit, tight=tight
    )
    if guarantee.epsilon > WEAKEST_EPSILON:
        notes += (f"an epsilon above {WEAKEST_EPSILON:g} is next to no protection",)
    return PlanAnswer(answered, unknowns[0], guarantee, notes)


def compare(question: Question) -> list[tuple[SamplerName, Adjacency, Answer]]:
    """Epsilon of a training for each sampler and each accountant, with the adjacency for which it holds.

    Every sampler is shown under the requested adjacency, or under its default one if it has no guarantee under that.
    Without a requested one, it is shown under its default one and under replace-one, which all samplers have.
    """
    rows = []
    delta = question.delta if question.delta is not None else usual_delta(question.examples)
    for name in SamplerName:
        named = replace(question, sampler=name)
        for adjacency in _compared_under(named):
            event = _event(replace(named, adjacency=adjacency))
            rows += [(name, adjacency, answer) for answer in all_answers(event, adjacency, delta)]
    return rows


def _compared_under(question: Question) -> tuple[Adjacency, ...]:
    own = replace(question, adjacency=None).effective_adjacency
    if question.adjacency is None:
        return tuple(dict.fromkeys((own, Adjacency.REPLACE_ONE)))
    covered = question.sampler in _SIZE_MAY_BE_SECRET or question.adjacency in (own, Adjacency.REPLACE_ONE)
    return (question.adjacency if covered else own,)


def make_sampler(question: Question) -> Sampler:
    """Makes the sampler of a question. If it partitions the data, batches per epoch are rounded to a whole number."""
    batch_size, adjacency, steps = _known(question.batch_size), question.effective_adjacency, question.num_steps
    expected = question.examples if adjacency is Adjacency.ADD_OR_REMOVE else None
    per_epoch = steps_per_epoch(question.examples, batch_size)
    epochs = max(1, math.ceil(steps / per_epoch))
    match question.sampler:
        case SamplerName.POISSON:
            return Poisson(_rate(question), steps, adjacency, expected)
        case SamplerName.TRUNCATED_POISSON:
            largest = min(question.examples, math.ceil(_TRUNCATION * batch_size))
            return TruncatedPoisson(_rate(question), steps, question.examples, largest, adjacency)
        case SamplerName.BALLS_IN_BINS:
            return BallsInBins(per_epoch, epochs, adjacency, expected)
        case SamplerName.SHUFFLED:
            return Shuffled(per_epoch, epochs, adjacency)
        case SamplerName.CYCLIC:
            return Cyclic(per_epoch, epochs, adjacency)
        case SamplerName.FIXED_SIZE:
            return FixedSize(int(batch_size), question.examples, steps, adjacency)


def _event(question: Question, noise_multiplier: float | None = None) -> DpEvent:
    release = question.release(_known(noise_multiplier or question.noise_multiplier))
    sampler = make_sampler(question)
    return sampler.compose(release, min(question.num_steps, sampler.steps))


def _solve_epsilon(question: Question, tight: bool) -> Question:
    return question  # epsilon is computed with the guarantee


def _solve_noise(question: Question, tight: bool) -> Question:
    def event(noise_multiplier: float) -> DpEvent:
        return _event(question, noise_multiplier)

    target = {"epsilon": _known(question.epsilon), "delta": _known(question.delta)}
    enough = smallest(event, question.effective_adjacency, **target)
    return replace(question, noise_multiplier=float(rounded_up(enough, _DIGITS)))


def _solve_delta(question: Question, tight: bool) -> Question:
    curve = privacy_of(_event(question), question.effective_adjacency, tight=tight)
    target = _known(question.epsilon)
    # The kernel draws Gaussian noise with unbounded support, so no delta is too small for its tail.
    delta = float(rounded_up(max(curve.delta(target), SMALLEST_DELTA), _DIGITS))
    # delta(epsilon) and epsilon(delta) of a numerical curve agree only up to its grid; the printed epsilon has to hold.
    while delta < 1 and curve.epsilon(delta) > target:
        delta = float(rounded_up(1.0002 * delta, _DIGITS))
    if delta >= 1:
        raise UsageError(f"no delta below 1 reaches epsilon {validate.shown(target)} with this noise.")
    return replace(question, delta=delta)


def _solve_steps(question: Question, tight: bool) -> Question:
    return _largest(question, lambda steps: replace(question, steps=steps), _LARGEST_STEPS, "one step", tight)


def _solve_batch_size(question: Question, tight: bool) -> Question:
    with_batch = lambda size: replace(question, batch_size=size)  # noqa: E731
    return _largest(question, with_batch, question.examples, "a batch of one", tight)


def _largest(question: Question, at: Callable[[int], Question], most: int, least: str, tight: bool) -> Question:
    """The question with the largest whole number whose epsilon is at most the target, by doubling and bisection."""

    def allowed(value: int) -> bool:
        curve = privacy_of(_event(at(value)), question.effective_adjacency, tight=tight)
        return curve.epsilon(_known(question.delta)) <= _known(question.epsilon)

    if not allowed(1):
        raise UsageError(f"even {least} exceeds epsilon {validate.shown(question.epsilon)} with this noise.")
    low, high = 1, 2
    while high <= most and allowed(high):
        low, high = high, 2 * high
    if high > most and allowed(most):
        return at(most)
    high = min(high, most)
    while high - low > max(1, low // 1000):  # a relative precision of 1/1000 is enough for steps and batch sizes
        middle = (low + high) // 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return at(low)


_SIZE_MAY_BE_SECRET = (SamplerName.POISSON, SamplerName.BALLS_IN_BINS)

_SOLVERS: dict[str, Callable[[Question, bool], Question]] = {
    "epsilon": _solve_epsilon,
    "noise multiplier": _solve_noise,
    "delta": _solve_delta,
    "steps": _solve_steps,
    "batch size": _solve_batch_size,
}


def _unknowns(question: Question) -> list[str]:
    values = {
        "batch size": question.batch_size,
        "steps": question.steps if question.epochs is None else question.epochs,
        "noise multiplier": question.noise_multiplier,
        "epsilon": question.epsilon,
        "delta": question.delta,
    }
    return [name for name, value in values.items() if value is None]


def _rate(question: Question) -> float:
    return _known(question.batch_size) / question.examples


def usual_delta(examples: int) -> float:
    """The default delta: the largest power of ten below 1 / examples.

    >>> usual_delta(60_000), usual_delta(1_000)
    (1e-05, 0.0001)
    """
    return float(f"1e-{math.floor(math.log10(examples)) + 1}")


def delta_note(delta: float) -> str:
    """A note that the default delta was used."""
    return f"delta was not given: {delta:g} is the largest power of ten below 1 / examples"


def _known(value: float | None) -> float:
    if value is None:
        raise UnsupportedEvent("a quantity that the plan needs is unknown.")
    return value
