"""`tune`: a search whose guarantee counts every trial, with noise calibrated so that all trials meet a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import attr
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Guarantee, privacy_of, smallest
from sordino.accounting.guarantee import rounded_up
from sordino.errors import BudgetError, UsageError
from sordino.kernel.budget import Budget, RunIdentity
from sordino.kernel.calibration import check_delta_for, check_target
from sordino.kernel.noise import check_tail
from sordino.kernel.randomness import Key
from sordino.kernel.records import Data
from sordino.training.evaluation import Public
from sordino.tuning.candidates import Candidate, Stage
from sordino.tuning.payments import Compose, Payment, Trials
from sordino.tuning.search_state import Keeper, SearchState
from sordino.tuning.task import Task


def calibrated(
    task: Task,
    payment: Payment,
    sizes: Sequence[int],
    *,
    epsilon: float,
    delta: float,
    budget: Budget,
    run: RunIdentity | None = None,
) -> Task:
    """The task with the smallest noise for which all trials together stay within the target.

    Raises if the search does not fit into the budget, unless the budget holds this search already, as `run`.
    """
    single: Any = task.plan.noise.event  # every noise has an event with a multiplier

    def event(noise_multiplier: float) -> DpEvent:
        trial = task.event_with(attr.evolve(single, noise_multiplier=noise_multiplier))
        return ComposedDpEvent([payment.event(trial, sizes)])

    _check_scores(task, payment, sizes, epsilon=epsilon, delta=delta)
    multiplier = smallest(event, task.plan.adjacency, epsilon=epsilon, delta=delta)
    if run is None or not budget.holds(run):
        budget.check_target(event, multiplier, task.plan.adjacency, what="tuning", delta=delta, epsilon=epsilon)
    found = task.with_noise(multiplier)
    all_steps = math.ceil(task.plan.steps * payment.expected_trials(sizes))
    check_tail(found.plan.noise, task.plan.adjacency, steps=all_steps, delta=delta)
    return found


def _check_scores(task: Task, payment: Payment, sizes: Sequence[int], *, epsilon: float, delta: float) -> None:
    """Raises if the scores alone exceed the target: then no noise on gradients is enough."""
    spent = privacy_of(payment.event(task.score.event, sizes), task.plan.adjacency).epsilon(delta)
    if spent >= epsilon:
        raise UsageError(
            f"the scores of the trials alone would cost epsilon {rounded_up(spent)} of {epsilon:g}: "
            "use more noise on scores (--score-std) or fewer trials."
        )


def multiplier_of(task: Task) -> float:
    """Noise multiplier of each step of a trial."""
    release: Any = task.plan.noise.event  # every noise has an event with a multiplier
    return float(release.noise_multiplier)


@dataclass(frozen=True)
class TuningResult:
    """The best model, its candidate, and the guarantee of all trials together.

    `scores` are those of all trials if they may be published, and empty otherwise.
    """

    model: nn.Module
    candidate: Candidate
    score: float
    guarantee: Guarantee
    noise_multiplier: float
    measured: dict[str, float] = field(repr=False)
    scores: tuple[tuple[Candidate, float], ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The best candidate on public rows, with all scores. It needs no guarantee, because no private row was read."""

    candidate: Candidate
    scores: tuple[tuple[Candidate, float], ...]


def tune(
    task: Task,
    data: Data | Budget,
    stages: Sequence[Stage],
    start: Candidate,
    *,
    payment: Payment,
    epsilon: float,
    delta: float,
    seed: int | None = None,
    key: Key | None = None,
    keeper: Keeper | None = None,
    on_promise: Callable[[Guarantee, Task], None] | None = None,
    on_trial: Callable[[], None] | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
) -> TuningResult:
    """Tries candidates around `start`, stage by stage, with noise such that (epsilon, delta) holds for all trials.

    If `data` is a `Budget` with other releases, the target is for this search; the guarantee of the budget counts all.
    `on_promise` is called with the guarantee before the first trial, `on_trial` after each trial if trials may be
    published.

    >>> import torch
    >>> import torch.nn.functional as F
    >>> import sordino as so
    >>> from sordino.tuning import PublicScore, Sgd, clip_momentum
    >>> rows, labels = torch.randn(200, 4), torch.randint(0, 3, (200,))
    >>> gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    >>> plan = so.Plan(so.Poisson(rate=0.25, steps=2), gradient, clip, noise)
    >>> score = PublicScore(Public((rows[:50], labels[:50])))
    >>> task = Task(lambda: nn.Linear(4, 3), plan, Sgd(lr=0.5), score, divisor=50)
    >>> stages, start = clip_momentum(task.optimizer, plan.encoding), Candidate(clip=0.1, momentum=0.9)
    >>> tuned = tune(task, (rows, labels), stages, start, payment=Compose(), epsilon=3.0, delta=1e-3, seed=0)
    >>> len(tuned.scores), tuned.guarantee.epsilon <= 3.0
    (5, True)
    """
    check_target(epsilon, delta, allow_weak=allow_weak)
    validate.instance(Payment, payment=payment)
    budget = data if isinstance(data, Budget) else Budget(data)
    sampler = task.plan.sampler
    examples = getattr(sampler, "expected_examples", None) or budget.records.num_units
    check_delta_for(examples, delta, allow_large_delta=allow_large_delta)
    if keeper is not None:
        budget.records.check_repeatable()
    sizes = sizes_of(stages, start)
    run = None if keeper is None else keeper.run
    task = calibrated(task, payment, sizes, epsilon=epsilon, delta=delta, budget=budget, run=run)
    key = _key(seed, key)
    trials = Trials(budget, payment, task.event, sizes, sampler.adjacency, key, run)
    if keeper is not None:
        keeper.number(trials.number)
    guarantee = budget.guarantee_of(
        payment.event(task.event, sizes), sampler.adjacency, delta=delta, assumptions=_assumptions(payment, key)
    )
    if on_promise is not None:
        on_promise(guarantee, task)
    standing = _search(task, trials, stages, start, keeper, on_trial if payment.shows_trials else None)
    best = standing.best
    if best is None:
        raise BudgetError("the random number of trials was 0: no model was trained, and the search stays charged.")
    if best.score == -math.inf:
        raise UsageError("the best trial diverged. Choose a smaller learning rate; the search stays charged.")
    model = task.model()
    model.load_state_dict(best.weights)
    multiplier = multiplier_of(task)
    shown = standing.scores if payment.shows_trials else ()
    return TuningResult(model, best.candidate, best.score, guarantee, multiplier, best.measured, shown)


def tune_on_public(
    task: Task,
    public: Public,
    stages: Sequence[Stage],
    start: Candidate,
    *,
    epsilon: float,
    delta: float,
    seed: int = 0,
) -> Chosen:
    """Tries every candidate on public rows, with the noise that one training on them would need for (epsilon, delta).

    The choice depends on public rows only, so it costs no privacy. Then train once on the private rows with it.
    """
    validate.instance(Public, public=public)
    budget, sizes = Budget(public.records), sizes_of(stages, start)
    task = calibrated(task, Compose(), (1,), epsilon=epsilon, delta=delta, budget=budget)
    trials = Trials(budget, Compose(), task.event, sizes, task.plan.adjacency, Key.from_seed(seed))
    standing = _search(task, trials, stages, start, keeper=None, on_trial=None)
    if standing.best is None or standing.best.score == -math.inf:
        raise UsageError("every candidate diverged on the public rows. Choose a smaller learning rate.")
    return Chosen(standing.best.candidate, standing.scores)


def sizes_of(stages: Sequence[Stage], start: Candidate) -> tuple[int, ...]:
    """Number of candidates in each stage. The first stage includes `start`.

    >>> from sordino.tuning.candidates import AlongTheLine, Clips
    >>> sizes_of((AlongTheLine((0.0, 0.5, 0.9)), Clips((0.5, 2.0))), Candidate(0.1, 0.9))
    (3, 2)
    """
    validate.instance(Sequence, stages=stages)
    if not stages:
        raise UsageError("a search needs at least one stage.")
    sizes, reached = list[int](), {start}
    for number, stage in enumerate(stages):
        tried = [_candidates(stage, number, centre) for centre in reached]
        if len({len(candidates) for candidates in tried}) > 1:
            raise UsageError(
                f"the number of candidates in stage {number} depends on the best pair so far, got "
                f"{sorted({len(candidates) for candidates in tried})}: it must be fixed in advance."
            )
        sizes.append(len(tried[0]))
        reached |= {candidate for candidates in tried for candidate in candidates}
    return tuple(sizes)


def _search(
    task: Task,
    trials: Trials,
    stages: Sequence[Stage],
    start: Candidate,
    keeper: Keeper | None,
    on_trial: Callable[[], None] | None,
) -> SearchState:
    standing = (None if keeper is None else keeper.last()) or SearchState(start)
    while standing.stage < len(stages):
        candidates = _candidates(stages[standing.stage], standing.stage, standing.centre)
        for trial in trials.of_stage(standing.stage, candidates)[standing.done :]:
            if keeper is not None:
                keeper.before_trial(standing)
            standing = standing.after(task.attempt(trial))
            if on_trial is not None:
                on_trial()
        standing = standing.next_stage()
    return standing


def _candidates(stage: Stage, number: int, centre: Candidate) -> tuple[Candidate, ...]:
    """Candidates of a stage. The first stage includes its center; in later ones it was tried before."""
    around = stage.around(centre)
    return (centre, *around) if number == 0 else around


def _assumptions(payment: Payment, key: Key) -> tuple[str, ...]:
    assumed = ("nothing else is released from the same data outside this tuning's budget", *payment.assumptions)
    if key.reproducible:
        assumed += (SEED_STAYS_SECRET,)
    return assumed


def _key(seed: int | None, key: Key | None) -> Key:
    if seed is not None and key is not None:
        raise UsageError("seed and key exclude each other: a seed makes a search reproducible, a key keeps it secret.")
    if key is not None:
        return key
    return Key.fresh() if seed is None else Key.from_seed(seed)
