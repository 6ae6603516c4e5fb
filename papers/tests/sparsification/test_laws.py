"""When random sparsification gains: more with more noise and a larger clip, by their product, and not without either.

The gain is how much lower the training loss ends, with the same draws for all settings, so seeds are compared with
themselves. "Above" means by four standard errors of the mean over seeds, which chance does in 3 of 100,000 cases; all
thirty statements together would be wrong in one of a thousand. Seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf, sqrt

import pytest
import torch
import torch.nn.functional as F
from batched_training import Draws, Problem, losses, train
from torch import Tensor, nn

import sordino as so
from sordino.encodings import RandomSparsify
from sordino.kernel.randomness import Key

SEEDS, FINAL_RATE, LEARNING_RATE = 256, 0.9, 1.0
SIGMAS, CLIP_NORMS = (1.0, 2.0, 4.0), (0.25, 0.5, 1.0)


@cache
def problem_and_draws() -> tuple[Problem, Draws]:
    problem = make_problem(rows=200, features=30, momentum=0.0)
    return problem, Draws.of(problem, SEEDS)


def make_problem(*, rows: int, features: int, momentum: float) -> Problem:
    generator, classes = torch.Generator().manual_seed(0), 3
    inputs = torch.randn(rows, features, generator=generator)
    scores = inputs @ torch.randn(features, classes, generator=generator)
    labels = (scores + 2 * torch.randn(rows, classes, generator=generator)).argmax(dim=1)
    return Problem(inputs, F.one_hot(labels, classes).float(), 10, 10, 0.2, LEARNING_RATE, momentum=momentum)


@cache
def final_losses(clip_norm: float, noise_std: float, final_rate: float, learning_rate: float = LEARNING_RATE) -> Tensor:
    problem, draws = problem_and_draws()
    problem = replace(problem, learning_rate=learning_rate)
    return losses(problem, train(problem, draws, clip_norm=clip_norm, noise_std=noise_std, final_rate=final_rate))


def gain(clip_norm: float, noise_std: float) -> Tensor:
    """How much lower the loss is with random sparsification, shape (s,)."""
    return final_losses(clip_norm, noise_std, 0.0) - final_losses(clip_norm, noise_std, FINAL_RATE)


def private_gain(sigma: float, clip_norm: float) -> Tensor:
    return gain(clip_norm, sigma * clip_norm)


def standard_errors(values: Tensor) -> float:
    """How many of them lie between 0 and the mean."""
    return float(values.mean() / values.std()) * sqrt(SEEDS)


def test_the_oracle_takes_the_steps_of_a_private_run() -> None:
    problem = replace(make_problem(rows=40, features=6, momentum=0.5), epochs=4, steps_per_epoch=3)
    seeds, sigma, clip_norm = 2, 1.5, 0.7
    steps, shape = problem.epochs * problem.steps_per_epoch, problem.shape
    sampler = so.Poisson(rate=problem.sampling_rate, steps=steps)
    sparsify = RandomSparsify(FINAL_RATE, epochs=problem.epochs, steps_per_epoch=problem.steps_per_epoch)
    joins, ranks = torch.zeros(steps, seeds, 40), torch.zeros(problem.epochs, seeds, 18, dtype=torch.int64)
    normals, trained = torch.zeros(steps, seeds, 18), []
    for seed in range(seeds):
        key = Key.from_seed(seed).of_release(0)
        for step, batch in enumerate(sampler.batches(40, key.stream("sampling"))):
            joins[step, seed, torch.from_numpy(batch)] = 1.0
            normals[step, seed] = torch.from_numpy(key.stream("noise").normals(18, step=step))
        for epoch in range(problem.epochs):
            order = torch.from_numpy(key.stream("coding").permutation(18, step=epoch))
            ranks[epoch, seed, order] = torch.arange(18)
        trained.append(weights_of_private_run(problem, sampler, sparsify, seed, sigma, clip_norm))
    draws = Draws(joins, ranks.unflatten(2, shape), normals.unflatten(2, shape))
    ours = train(problem, draws, clip_norm=clip_norm, noise_std=sigma * clip_norm, final_rate=FINAL_RATE)
    torch.testing.assert_close(ours, torch.stack(trained), atol=1e-4, rtol=1e-4)


def weights_of_private_run(problem, sampler, sparsify, seed: int, sigma: float, clip_norm: float) -> Tensor:
    model = nn.Linear(problem.shape[1], problem.shape[0], bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=problem.learning_rate, momentum=problem.momentum)
    stages = so.LossGradient(F.cross_entropy), so.ClipByNorm(clip_norm), so.Gaussian(sigma)
    data = problem.rows, problem.labels.argmax(dim=1)
    for private in so.PrivateRun(so.Plan(sampler, *stages, sparsify), model, data, seed=seed):
        private.divide(problem.batch_size).write_to(model)
        optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
def test_the_gain_rises_with_the_noise_multiplier(clip_norm: float) -> None:
    for lower, higher in pairwise(SIGMAS):
        assert standard_errors(private_gain(higher, clip_norm) - private_gain(lower, clip_norm)) > 4


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_gain_rises_with_the_clip_norm(sigma: float) -> None:
    for lower, higher in pairwise(CLIP_NORMS):
        assert standard_errors(private_gain(sigma, higher) - private_gain(sigma, lower)) > 4


def explained(cells: dict[tuple[float, float], Tensor], by: Callable[[float, float], float]) -> Tensor:
    """The share of the spread of the cells' gains that lies between groups of cells, shape (parts of the seeds,)."""
    groups: dict[float, list[Tensor]] = {}
    for cell, gains in cells.items():
        groups.setdefault(by(*cell), []).append(gains)
    mean = torch.stack(list(cells.values())).mean(dim=0)
    between = sum(len(group) * (torch.stack(group).mean(dim=0) - mean).square() for group in groups.values())
    return between / sum((gains - mean).square() for gains in cells.values())


def test_cells_of_equal_noise_agree() -> None:
    """Their product explains the gains, in each of eight disjoint parts of the seeds; neither does alone."""
    cells = {(s, c): private_gain(s, c).reshape(8, -1).mean(dim=1) for s in SIGMAS for c in CLIP_NORMS}
    by_product = explained(cells, lambda sigma, clip_norm: sigma * clip_norm)
    assert float(by_product.min()) > 0.95
    assert float(explained(cells, lambda sigma, clip_norm: sigma).max()) < 0.6
    assert float(explained(cells, lambda sigma, clip_norm: clip_norm).max()) < 0.6


@pytest.mark.parametrize("sigma, clip_norm", [(2.0, 1.0), (4.0, 0.5), (4.0, 1.0)])
def test_there_is_a_gain_where_noise_outweighs_the_clip(sigma: float, clip_norm: float) -> None:
    assert standard_errors(private_gain(sigma, clip_norm)) > 4


@pytest.mark.parametrize("sigma, clip_norm", [(s, c) for s in SIGMAS for c in CLIP_NORMS if s * c <= 1])
def test_there_is_a_loss_where_it_does_not(sigma: float, clip_norm: float) -> None:
    assert standard_errors(private_gain(sigma, clip_norm)) < -4


@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
def test_there_is_no_gain_without_noise(clip_norm: float) -> None:
    assert standard_errors(gain(clip_norm, 0.0)) < -4


@pytest.mark.parametrize("noise_std", SIGMAS)
def test_there_is_no_gain_without_a_clip(noise_std: float) -> None:
    assert standard_errors(gain(inf, noise_std)) < -4


def test_a_smaller_learning_rate_gains_more() -> None:
    """Where sparsification gains most, a search of the learning rate for both leaves it behind."""
    searched = [[final_losses(1.0, 4.0, rate, step) for step in (0.25, 0.5, 1.0)] for rate in (0.0, FINAL_RATE)]
    without, sparsified = (min(each, key=lambda values: float(values.mean())) for each in searched)
    assert standard_errors(sparsified - without) > 4
