"""Known bugs, planted one at a time: a check must notice each, and notice nothing in a clean kernel."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.experiments.attacks.mutants import MUTANTS, OF_OPTIMIZED_NOISE, Mutant, planted
from sordino.optimized import best_blocks, isotropic, weighted_laplace
from sordino.optimized.learnt import FromReleases
from sordino.optimized.noise import OptimizedNoise
from sordino.records import as_records
from sordino.verification import Verdict, noise_statistics

DATA = (torch.zeros(100, 12), torch.zeros(100, dtype=torch.int64))


def verdict(seed=0, noise=None):
    """A verification small enough to be repeated: 12-16-4, a clip norm that is not 1, add-or-remove."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))
    sampler = so.Poisson(0.1, 200, so.Adjacency.ADD_OR_REMOVE, 100)
    plan = so.Plan(sampler, so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0), noise or so.Gaussian(1.0))
    return so.verify(plan, model, DATA, seed=seed)


def of_optimized_noise(noise):
    """What is seen of the noise alone, on 12-24-2: the other checks do not look at it."""
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 2))
    plan = so.Plan(so.Poisson(0.1, 200), so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0), noise)
    return Verdict(tuple(noise_statistics.examine(plan, model, as_records(DATA), seed=0, delta=1e-5)))


def test_there_are_twenty_two_mutants_and_five_of_optimised_noise():
    assert len({mutant.name for mutant in MUTANTS}) == 22
    assert len({mutant.name for mutant in OF_OPTIMIZED_NOISE}) == 5


def test_what_was_planted_is_gone_afterwards_also_after_an_error():
    class Kernel:
        def add(self):
            return "honest"

    class Special(Kernel):
        pass

    def plant(patch):
        patch.set(Special, "add", lambda self: "mutated")
        patch.set(Kernel, "add", lambda self: "mutated too")

    with pytest.raises(ZeroDivisionError), planted(Mutant("a mutant", "a check", plant)):
        assert Special().add() == "mutated" and Kernel().add() == "mutated too"
        _ = 1 / 0
    assert Special().add() == Kernel().add() == "honest"
    assert "add" not in vars(Special)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant):
    with planted(mutant):
        found = verdict()
    assert not found.passed
    assert mutant.caught_by in found.failed_checks


@pytest.mark.parametrize("mutant", OF_OPTIMIZED_NOISE, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught_in_optimized_noise(mutant):
    with planted(mutant):
        found = of_optimized_noise(OptimizedNoise(1.0))
    assert mutant.caught_by in found.failed_checks


@pytest.mark.parametrize("fit", [best_blocks, weighted_laplace, isotropic])
def test_clean_optimized_noise_raises_no_alarm(fit):
    found = of_optimized_noise(OptimizedNoise(1.0, FromReleases(0.8), fit=fit))
    assert found.passed, str(found)


def test_a_whole_verification_of_optimized_noise_raises_no_alarm():
    found = verdict(noise=OptimizedNoise(1.0, FromReleases(0.8)))
    assert found.passed, str(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_clean_kernel_raises_no_alarm(seed):
    found = verdict(seed)
    assert found.passed, str(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_clean_kernels_raise_no_alarm(seed):
    found = verdict(seed)
    assert found.passed, str(found)
