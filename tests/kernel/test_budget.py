"""A budget composes everything that is released from its dataset."""

import pytest
import torch
import torch.nn.functional as F
from dp_accounting import GaussianDpEvent
from torch import nn

import sordino as so
from sordino.errors import BudgetError, UsageError

DATA = (torch.zeros(50, 4), torch.zeros(50, dtype=torch.int64))


def plan(noise_multiplier=4.0, **sampler):
    sampler = so.Poisson(0.2, 10, **sampler)
    return so.Plan(sampler, so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), so.Gaussian(noise_multiplier))


def test_two_runs_on_one_budget_cost_more_than_one():
    budget = so.Budget(DATA)
    so.PrivateRun(plan(), nn.Linear(4, 2), budget)
    once = budget.guarantee(delta=1e-3).epsilon
    so.PrivateRun(plan(), nn.Linear(4, 2), budget)
    assert budget.guarantee(delta=1e-3).epsilon > 1.2 * once
    assert budget.releases == ("training run", "training run")


def test_a_release_beyond_the_limit_is_refused_before_the_data_is_touched():
    class Watched(torch.utils.data.Dataset):
        reads = 0

        def __len__(self):
            return 50

        def __getitem__(self, index):
            Watched.reads += 1
            return torch.zeros(4), torch.tensor(0)

    budget = so.Budget(Watched(), epsilon=0.5, delta=1e-3)
    so.PrivateRun(plan(4.0), nn.Linear(4, 2), budget)
    reads = Watched.reads
    with pytest.raises(BudgetError, match=r"would bring epsilon to .* at delta 0.001; allowed is 0.5"):
        so.PrivateRun(plan(1.0), nn.Linear(4, 2), budget)
    assert Watched.reads == reads


def test_calibrating_within_a_budget_leaves_room_for_what_it_holds():
    budget = so.Budget(DATA, epsilon=2.0, delta=1e-3)
    budget.charge(GaussianDpEvent(4.0), so.Adjacency.ZERO_OUT, what="mean of the inputs")
    alone = so.calibrate(plan(), epsilon=2.0, delta=1e-3)
    within = so.calibrate(plan(), epsilon=2.0, delta=1e-3, budget=budget)
    assert within.noise.noise_multiplier > alone.noise.noise_multiplier
    so.PrivateRun(within, nn.Linear(4, 2), budget)
    assert 1.9 < budget.guarantee(delta=1e-3).epsilon <= 2.0


def test_one_budget_has_one_adjacency():
    budget = so.Budget(DATA)
    so.PrivateRun(plan(), nn.Linear(4, 2), budget)
    with pytest.raises(UsageError, match="this one has zero-out, got replace-one"):
        so.PrivateRun(plan(adjacency=so.Adjacency.REPLACE_ONE), nn.Linear(4, 2), budget)


def test_a_refused_model_is_not_charged():
    budget = so.Budget(DATA)
    with pytest.raises(UsageError):
        so.PrivateRun(plan(), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), budget)
    assert budget.releases == ()


def test_a_limit_needs_epsilon_and_delta():
    with pytest.raises(UsageError, match="both epsilon and delta"):
        so.Budget(DATA, epsilon=1.0)


@pytest.mark.parametrize("target", [0, -1, float("nan"), float("inf"), "1"])
def test_an_epsilon_that_means_nothing_is_refused(target):
    with pytest.raises(UsageError, match="epsilon must be a finite number above 0"):
        so.calibrate(plan(), epsilon=target, delta=1e-3)


@pytest.mark.parametrize("delta", [0, -1e-5, 1, 2, float("nan"), 1e-310, "1e-5"])
def test_a_delta_that_is_no_probability_is_refused(delta):
    with pytest.raises(UsageError, match="delta must be in"):
        so.calibrate(plan(), epsilon=1.0, delta=delta)


def test_a_weak_target_has_to_be_asked_for():
    with pytest.raises(UsageError, match="epsilon must be at most 20"):
        so.calibrate(plan(), epsilon=30.0, delta=1e-3)
    assert so.calibrate(plan(), epsilon=30.0, delta=1e-3, allow_weak=True).guarantee(delta=1e-3).epsilon <= 30


def test_a_target_that_would_drown_everything_names_the_noise_it_needs():
    with pytest.raises(UsageError, match=r"noise|sigma|multiplier"):
        so.calibrate(plan(), epsilon=1e-9, delta=1e-12)
