"""Algorithms 1 to 3 on softmax regression, for all seeds at once: an oracle with which hundreds of runs take seconds.

Index letters: `s` a seed, `n` an example, `k` a class, `f` a feature. A gradient of one example is the outer product of
its error (k) and its features (f), so its length under a mask is a sum of squared errors times masked squared features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.kernel.clipping import SCALED_TO


@dataclass(frozen=True)
class Problem:
    """Rows (n, f) with labels (n, k) that are one at the class, and how long to train on them."""

    rows: Tensor
    labels: Tensor
    epochs: int
    steps_per_epoch: int
    sampling_rate: float
    learning_rate: float
    momentum: float = 0.0

    @property
    def batch_size(self) -> float:
        return self.sampling_rate * len(self.rows)

    @property
    def shape(self) -> tuple[int, int]:
        return self.labels.shape[1], self.rows.shape[1]


@dataclass(frozen=True)
class Draws:
    """What is drawn, once for all settings, so that they are compared seed by seed."""

    joins: Tensor  # (step, s, n) 1 where the example is in the batch
    ranks: Tensor  # (epoch, s, k, f) a random order of the coordinates; the first are zeroed
    normals: Tensor  # (step, s, k, f)

    @classmethod
    def of(cls, problem: Problem, seeds: int) -> Draws:
        generator = torch.Generator().manual_seed(0)
        steps, (classes, features) = problem.epochs * problem.steps_per_epoch, problem.shape
        joins = torch.rand(steps, seeds, len(problem.rows), generator=generator) < problem.sampling_rate
        words = torch.rand(problem.epochs, seeds, classes * features, generator=generator)
        ranks = words.argsort(dim=2).argsort(dim=2).unflatten(2, (classes, features))
        return cls(joins.float(), ranks, torch.randn(steps, seeds, classes, features, generator=generator))


def train(problem: Problem, draws: Draws, *, clip_norm: float, noise_std: float, final_rate: float) -> Tensor:
    """The weights (s, k, f) after the last step. `noise_std` is on the sum; no clip is a clip norm of infinity."""
    weights = torch.zeros(draws.normals.shape[1:])
    velocity = torch.zeros_like(weights)
    squares = problem.rows.square()
    for epoch, ranks in enumerate(draws.ranks):
        rate = final_rate * epoch / (problem.epochs - 1)
        mask = (ranks >= int(rate * ranks[0].numel())).float()
        masked_squares = mask @ squares.T
        for step in range(epoch * problem.steps_per_epoch, (epoch + 1) * problem.steps_per_epoch):
            errors = (weights @ problem.rows.T).softmax(dim=1) - problem.labels.T
            lengths = (errors.square() * masked_squares).sum(dim=1).sqrt()
            shrink = draws.joins[step] * (clip_norm * SCALED_TO / lengths).clamp(max=1.0)
            total = (errors * shrink[:, None]) @ problem.rows + noise_std * draws.normals[step]
            velocity = problem.momentum * velocity + mask * total / problem.batch_size
            weights = weights - problem.learning_rate * velocity
    return weights


def losses(problem: Problem, weights: Tensor) -> Tensor:
    """The mean cross-entropy over all rows, shape (s,)."""
    return -((weights @ problem.rows.T).log_softmax(dim=1) * problem.labels.T).sum(dim=1).mean(dim=1)
