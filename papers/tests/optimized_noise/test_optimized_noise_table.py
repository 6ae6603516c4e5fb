"""The table of optimised noise: what each way promises, and what is compared with what."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sordino.data.standard import is_complete, root
from sordino.errors import UsageError
from sordino.kernel.calibration import calibrate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.noise import Gaussian
from sordino.kernel.sampling import Poisson
from sordino.kernel.step import Plan
from sordino_papers.harness.entry import Entry, RunScale
from sordino_papers.harness.reproduce import reproduce
from sordino_papers.harness.results_file import ResultsFile
from sordino_papers.optimized_noise.by_dimension import DELTA as DELTA_OF_COSTS
from sordino_papers.optimized_noise.by_dimension import by_dimension, costs, lognormal_weights, measure_by_dimension
from sordino_papers.optimized_noise.curves import accuracy_curves
from sordino_papers.optimized_noise.mechanisms import DELTA, StepSettings
from sordino_papers.optimized_noise.moments_accountant import epsilon_of_2016, least_epsilon_of_2016, noise_of_2016
from sordino_papers.optimized_noise.table import (
    ALL,
    BLOCKS,
    BY_2016,
    COURSES,
    GAUSSIAN,
    ISOTROPIC,
    LAPLACE,
    OPTIMIZED_NOISE,
    PROJECTED,
    RATES,
    WAYS,
    _lines,
)

needs_digits = pytest.mark.skipif(
    not (is_complete("mnist", root()) and is_complete("fashion-mnist", root())),
    reason="MNIST and Fashion-MNIST are not there",
)
SETTINGS = StepSettings(steps=20, rate=0.1, learning_rate=1.0, clip=1.0)


def test_the_accounting_of_2016_says_what_was_published():
    assert round(epsilon_of_2016(Poisson(rate=0.01, steps=10_000), 4.0, 1e-5), 2) == 1.26


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_noise_of_2016_is_the_smallest_that_its_accountant_takes(epsilon):
    sampler = Poisson(rate=0.05, steps=200)
    noise = noise_of_2016(sampler, epsilon=epsilon, delta=1e-5)
    assert epsilon_of_2016(sampler, noise, 1e-5) <= epsilon
    assert epsilon_of_2016(sampler, 0.999 * noise, 1e-5) > epsilon


@pytest.mark.parametrize("rate", [0.02, 1.0])
def test_better_accounting_needs_less_noise(rate):
    sampler = Poisson(rate=rate, steps=100)
    plan = Plan(sampler, LossGradient(nn.functional.cross_entropy), ClipByNorm(1.0), Gaussian(1.0))
    today = calibrate(plan, epsilon=1.0, delta=1e-5).noise
    assert isinstance(today, Gaussian)
    assert today.noise_multiplier < noise_of_2016(sampler, epsilon=1.0, delta=1e-5)


def test_the_accounting_of_2016_cannot_promise_a_small_epsilon():
    assert epsilon_of_2016(Poisson(rate=0.01, steps=1), 1e6, 1e-5) >= least_epsilon_of_2016(1e-5)
    with pytest.raises(UsageError, match=r"epsilon must be above 0\.3598"):
        noise_of_2016(Poisson(rate=0.01, steps=1), epsilon=0.3, delta=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_every_way_keeps_its_promise(way, epsilon):
    plan = WAYS[way].plan(SETTINGS, epsilon, nn.Linear(4, 10), torch.zeros(3, 4))
    promised = plan.guarantee(delta=DELTA).epsilon
    assert promised <= epsilon
    assert promised > (0.3 if way == BY_2016 else 0.99) * epsilon


def test_what_promises_nothing_has_no_epsilon():
    for entry in OPTIMIZED_NOISE.entries(RunScale.CPU):
        nothing = "no privacy" in entry.method or "not guaranteed" in entry.method
        assert (entry.epsilon is None) == (entry.adjacency is None) == nothing


@pytest.mark.parametrize("trained", ALL, ids=lambda one: one.title)
def test_noise_with_a_shape_is_compared_at_the_settings_of_noise_without(trained):
    lines = _lines(trained, RunScale.CPU)
    for one, other in ((GAUSSIAN, "matched Gaussian"), (ISOTROPIC, LAPLACE), (ISOTROPIC, BLOCKS)):
        if one in lines and other in lines:
            assert [x.settings["training"] for x in lines[one]] == [x.settings["training"] for x in lines[other]]


def test_what_was_chosen_was_searched():
    for trained in ALL:
        if trained.title not in RATES:
            continue
        for way, at in ((GAUSSIAN, trained.gaussian), (BLOCKS, trained.pure)):
            for settings in at.values():
                assert (settings.steps, settings.rate, settings.clip) in COURSES[way]
                assert settings.learning_rate in RATES[trained.title]


def test_blocks_cost_no_more_than_the_other_families():
    for one in costs(dimensions=[1, 7, 500]):
        assert one.over_gaussian["blocks"] <= (1 + 1e-9) * min(one.over_gaussian.values())


def test_pure_noise_is_cheaper_in_one_dimension_and_dearer_in_a_thousand():
    for one in costs(dimensions=[1, 1000]):
        assert (one.over_gaussian["blocks"] < 1) == (one.dimension == 1)


def test_weights_have_the_spread_that_they_are_asked_for():
    assert float(lognormal_weights(10_000, 2.0).log().std()) == pytest.approx(2.0, rel=0.01)


def test_costs_are_drawn_and_kept(tmp_path):
    measure_by_dimension(tmp_path, "a command", dimensions=[1, 10])
    side = by_dimension(tmp_path)
    assert all(path.exists() for path in side.files)
    assert math.isclose(DELTA_OF_COSTS, DELTA)


def test_curves_of_nothing_are_empty_and_no_error(tmp_path):
    panels = {trained.title: _lines(trained, RunScale.QUICK) for trained in ALL}
    accuracy_curves(panels, ResultsFile(tmp_path / "runs.jsonl"), tmp_path / "curves.svg", seeds=1)
    assert (tmp_path / "curves.svg").exists()


def projected() -> list[Entry]:
    return [entry for entry in OPTIMIZED_NOISE.entries(RunScale.QUICK) if entry.method.startswith(PROJECTED.title)]


@needs_digits
@pytest.mark.parametrize(
    "entry", [entry for entry in projected() if entry.epsilon in (None, 1.0)], ids=lambda x: x.name
)
def test_a_head_is_trained_in_every_way(entry):
    measured = entry.measure(0)
    assert 5 < measured.value < 100
    assert ("epsilon" in measured.more) == (entry.epsilon is not None)


@needs_digits
@pytest.mark.slow
def test_the_table_is_made_with_all_that_goes_with_it(tmp_path):
    found = reproduce(OPTIMIZED_NOISE, tmp_path, scale=RunScale.QUICK, seeds=1, only=PROJECTED.title, progress=False)
    results = ResultsFile(tmp_path / "runs.jsonl")
    assert all(results.has(entry, seed=0) for entry in projected())
    assert all(path.exists() for side in found.sides for path in side.files)
