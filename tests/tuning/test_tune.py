"""Tuning as a library: what is charged, what is promised, what may be seen."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from dp_accounting.dp_event import GaussianDpEvent, RepeatAndSelectDpEvent, SelfComposedDpEvent
from torch import nn

import sordino as so
from sordino.accounting import Adjacency, View, privacy_of
from sordino.accounting.events import flatten
from sordino.errors import BudgetError, UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.randomness import Key
from sordino.training.evaluation import Public
from sordino.tuning import (
    Candidate,
    Clips,
    Compose,
    NegativeBinomialNumber,
    PoissonNumber,
    Prepaid,
    PrivateAccuracy,
    PublicScore,
    Repeat,
    Sgd,
    Task,
    clip_momentum,
    tune,
    tune_on_public,
)
from sordino.tuning.candidates import AlongTheLine, Momenta
from sordino.tuning.payments import Trials
from sordino.tuning.tune import sizes_of

LABELS = torch.arange(300) % 2
ROWS = torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) + 2 * LABELS[:, None]
DATA, PUBLIC = (ROWS, LABELS), Public((ROWS[:60], LABELS[:60]))
START = Candidate(clip=0.5, momentum=0.5)
TARGET = {"epsilon": 3.0, "delta": 1e-3}
REPEAT = Repeat(NegativeBinomialNumber(3.0))


def zeros():
    model = nn.Linear(4, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def always_the_first():
    """Small steps from here change no answer."""
    model = zeros()
    nn.init.constant_(model.bias[:1], 0.3)
    return model


def task(score=None, lr=0.5):
    gradient, clip, noise = so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(1.0)
    plan = so.Plan(so.Poisson(rate=0.2, steps=3), gradient, clip, noise)
    return Task(zeros, plan, Sgd(lr), score or PrivateAccuracy(30.0), divisor=60, test=PUBLIC)


STAGES = clip_momentum(Sgd(0.5), task().plan.encoding)


@pytest.mark.parametrize(
    "payment",
    [Compose(), *(pytest.param(each, marks=pytest.mark.slow) for each in (REPEAT, Repeat(PoissonNumber(3.0))))],
)
def test_the_promise_of_a_tuning_meets_its_target_with_all_trials_in_it(payment):
    budget = Budget(DATA)
    tuned = tune(task(), budget, STAGES, START, payment=payment, **TARGET, seed=1)
    assert 2.99 < tuned.guarantee.epsilon <= 3.0
    assert tuned.guarantee.event == budget.event and budget.releases == ("tuning",)
    one = task().with_noise(tuned.noise_multiplier).event
    assert privacy_of(one, Adjacency.ZERO_OUT).epsilon(1e-3) < 0.75 * tuned.guarantee.epsilon
    assert 0 <= tuned.measured["accuracy"] <= 1


@pytest.mark.parametrize("later", [Momenta((0.5, 0.9)), AlongTheLine((0.5, 0.9))])
def test_stages_whose_size_depends_on_the_best_so_far_are_refused_before_any_charge(later):
    budget = Budget(DATA)
    with pytest.raises(UsageError, match=r"candidates in stage 1 depends on the best pair .* got \[1, 2\]"):
        tune(task(), budget, (AlongTheLine((0.0,)), later), START, payment=Compose(), **TARGET, seed=1)
    assert budget.releases == ()


def test_every_candidate_is_composed_once():
    tuned = tune(task(), DATA, STAGES, START, payment=Compose(), **TARGET, seed=1)
    counts = {type(part.mechanism).__name__: part.count for part in flatten(tuned.guarantee.event)}
    assert sizes_of(STAGES, START) == (3, 2)
    assert counts == {"PoissonSampledDpEvent": 5 * 3, "GaussianDpEvent": 5}
    assert len(tuned.scores) == 5 and max(score for _, score in tuned.scores) == tuned.score
    assert tuned.guarantee.view is View.EVERY_STEP


def test_a_random_number_of_trials_is_never_shown():
    heard = []
    tuned = tune(
        task(), DATA, STAGES, START, payment=REPEAT, **TARGET, seed=1, on_trial=lambda: heard.append("a trial")
    )
    assert heard == [] and tuned.scores == ()
    assert "stay secret" in tuned.guarantee.statement and tuned.guarantee.view is View.FINAL_MODEL
    assert [part.count for part in flatten(tuned.guarantee.event)] == [2]  # stages, whatever was drawn
    assert all(isinstance(part.mechanism, RepeatAndSelectDpEvent) for part in flatten(tuned.guarantee.event))


def test_the_target_is_that_of_this_tuning_whatever_the_budget_holds():
    budget = Budget(DATA)
    budget.charge(GaussianDpEvent(4.0), Adjacency.ZERO_OUT, what="mean")
    tuned = tune(task(), budget, STAGES, START, payment=REPEAT, **TARGET, seed=1)
    alone = tune(task(), DATA, STAGES, START, payment=REPEAT, **TARGET, seed=1)
    assert tuned.guarantee.epsilon == alone.guarantee.epsilon <= 3.0
    assert tuned.noise_multiplier == alone.noise_multiplier
    assert budget.guarantee(delta=TARGET["delta"]).epsilon > 3.0
    assert any("counted alone: its budget holds 2 releases" in each for each in tuned.guarantee.assumptions)


def test_a_refusal_says_what_is_spent_and_what_would_fit(monkeypatch):
    budget = Budget(DATA, epsilon=4.0, delta=TARGET["delta"])
    budget.charge(GaussianDpEvent(1.0), Adjacency.ZERO_OUT, what="mean")
    with pytest.raises(
        BudgetError,
        match=r"epsilon 3 for this tuning does not fit into .*: [\d.]+ of 4 are spent at .*at most [\d.]+\.",
    ):
        tune(task(), budget, STAGES, START, payment=Compose(), **TARGET, seed=1)
    assert budget.releases == ("mean",)


def test_a_budget_that_is_too_small_refuses_before_any_trial(monkeypatch):
    monkeypatch.setattr(Task, "attempt", lambda *_: pytest.fail("a trial began"))
    with pytest.raises(BudgetError, match=r"tuning does not fit into the budget: 0 of 1 are spent"):
        tune(task(), Budget(DATA, epsilon=1.0, delta=1e-3), STAGES, START, payment=Compose(), **TARGET)


def test_scores_that_spend_the_target_by_themselves_are_refused_before_any_charge():
    budget = Budget(DATA)
    with pytest.raises(UsageError, match="scores of the trials alone would cost epsilon"):
        tune(task(PrivateAccuracy(1.0)), budget, STAGES, START, payment=REPEAT, **TARGET)
    assert budget.releases == ()


def test_the_kernel_refuses_a_trial_that_was_not_charged():
    wanted = task().with_noise(2.0)
    trials = Trials(Budget(DATA), Compose(), wanted.event, (1, 1), Adjacency.ZERO_OUT, Key.from_seed(0))
    [trial] = trials.of_stage(0, [START])
    with pytest.raises(BudgetError, match="was not charged"):
        wanted.with_noise(1.9).attempt(trial)
    assert wanted.attempt(trial).candidate == START
    with pytest.raises(BudgetError, match="was not charged"):
        wanted.attempt(trial)
    for stage, candidates in ((0, [START]), (1, [START, START]), (2, [START])):
        with pytest.raises(BudgetError, match="was not charged"):
            trials.of_stage(stage, candidates)


def test_a_trial_promises_what_the_whole_does_and_its_run_says_that_it_is_not_alone():
    whole = Budget(DATA)
    plan = task().with_noise(8.0).plan
    whole.charge(SelfComposedDpEvent(plan.event, 5), Adjacency.ZERO_OUT, what="tuning")
    trial = Prepaid(whole, plan.event)
    run = so.PrivateRun(plan, zeros(), trial, seed=0)
    assert trial.guarantee(delta=1e-3).epsilon == whole.guarantee(delta=1e-3).epsilon
    assert trial.guarantee(delta=1e-3).epsilon > run.guarantee(delta=1e-3).epsilon
    assert "counted alone" in " ".join(run.guarantee(delta=1e-3).assumptions)


def test_the_best_is_found():
    """One candidate clips to nearly nothing, so that its model hardly moves from constant answers."""
    useless = Candidate(clip=1e-6, momentum=0.0)
    generous = {"epsilon": 20.0, "delta": 1e-3}
    stages = (Clips((1e6,)),)
    wrong = replace(task(PublicScore(PUBLIC)), model=always_the_first)
    tuned = tune(wrong, DATA, stages, useless, payment=Compose(), **generous, seed=0)
    assert tuned.candidate.clip == pytest.approx(1.0)
    assert tuned.score == tuned.measured["accuracy"] > 0.75


def test_the_same_seed_gives_the_same_model_and_another_one_another():
    def weight(seed):
        return tune(task(), DATA, STAGES, START, payment=REPEAT, **TARGET, seed=seed).model.weight

    assert torch.equal(weight(1), weight(1)) and not torch.equal(weight(1), weight(2))


def test_trials_of_one_stage_have_noise_of_their_own():
    trials = Trials(Budget(DATA), Compose(), task().event, (2,), Adjacency.ZERO_OUT, Key.from_seed(0))
    one, other = trials.of_stage(0, [START, START])
    assert one.key != other.key


def test_a_candidate_that_diverges_does_not_win_and_is_not_heard_of():
    wild = task(PublicScore(PUBLIC), lr=1e30)
    tuned = tune(wild, DATA, (Clips((1e12,)),), START, payment=Compose(), **TARGET, seed=0)
    assert tuned.candidate == START and tuned.scores[-1][1] == -math.inf


def test_if_all_diverge_the_charge_stays():
    budget = Budget(DATA)
    with pytest.raises(UsageError, match="diverged"):
        tune(task(lr=1e38), budget, STAGES, replace(START, clip=1e4), payment=Compose(), **TARGET, seed=0)
    assert budget.releases == ("tuning",)


def test_no_trial_at_all_is_a_result_too(monkeypatch):
    monkeypatch.setattr(PoissonNumber, "draw", lambda *_, **__: 0)
    budget = Budget(DATA)
    with pytest.raises(BudgetError, match="number of trials was 0"):
        tune(task(), budget, STAGES, START, payment=Repeat(PoissonNumber(3.0)), **TARGET, seed=0)
    assert budget.releases == ("tuning",)


def test_what_is_chosen_on_public_rows_reads_no_private_one_and_promises_nothing():
    chosen = tune_on_public(task(PublicScore(PUBLIC)), PUBLIC_TRAINING, STAGES, START, **TARGET)
    assert len(chosen.scores) == 5 and not hasattr(chosen, "guarantee")
    with pytest.raises(UsageError, match="public must be a Public"):
        tune_on_public(task(PublicScore(PUBLIC)), DATA, STAGES, START, **TARGET)


PUBLIC_TRAINING = Public((ROWS[:200], LABELS[:200]))
