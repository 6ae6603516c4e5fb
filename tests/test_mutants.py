"""Known bugs, planted one at a time: a check must notice each, and notice nothing in a clean kernel."""

import pytest
import torch
import torch.nn.functional as F
from mutants import MUTANTS
from torch import nn

import sordino as so

DATA = (torch.zeros(100, 12), torch.zeros(100, dtype=torch.int64))


def verdict(seed=0):
    """A verification small enough to be repeated: 12-16-4, a clip norm that is not 1, add-or-remove."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    sampler = so.Poisson(0.1, 200, so.Adjacency.ADD_OR_REMOVE, 100)
    plan = so.Plan(sampler, so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0), so.Gaussian(1.0))
    return so.verify(plan, model, DATA, seed=seed)


def test_there_are_nineteen_mutants():
    assert len({mutant.name for mutant in MUTANTS}) == 19


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant, monkeypatch):
    mutant.plant(monkeypatch)
    found = verdict()
    assert not found.passed
    assert mutant.caught_by in found.failed_checks


@pytest.mark.parametrize("seed", range(3))
def test_a_clean_kernel_raises_no_alarm(seed):
    found = verdict(seed)
    assert found.passed, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_clean_kernels_raise_no_alarm(seed):
    found = verdict(seed)
    assert found.passed, str(found)
