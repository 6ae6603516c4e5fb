"""Least squares from released statistics: the model that sufficient statistics perturbation gives."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee, smallest
from sordino.convex.random_features import FeatureMap, Features
from sordino.convex.sufficient_statistics import Statistics, Summation, release_statistics
from sordino.errors import UsageError
from sordino.kernel.budget import Budget
from sordino.kernel.calibration import check_delta_for, check_target
from sordino.kernel.records import Data


class LinearModel(nn.Module):
    """Raw inputs -> features -> one output per class; the largest is the prediction."""

    def __init__(self, features: Features, input_shape: tuple[int, ...], weights: Tensor) -> None:
        super().__init__()
        self.features = FeatureMap(features, input_shape)
        self.linear = nn.Linear(weights.shape[0], weights.shape[1], bias=False)
        self.linear.weight = nn.Parameter(weights.T.to(torch.float32).contiguous(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.linear(self.features(inputs))
        return outputs


@dataclass(frozen=True)
class FittedLinear:
    """A linear model on random features, and what all that was released for it promises."""

    model: LinearModel
    guarantee: Guarantee
    noise_multiplier: float
    ridge: float


def typical_noise(statistics: Statistics) -> float:
    """The root mean square of the eigenvalues of the noise on X^T X. Below it, an eigenvalue says nothing."""
    return statistics.noise_std * sqrt(len(statistics.gram) / 2)


def solve(statistics: Statistics, ridge: float) -> Tensor:
    """Weights (f, k) of least squares with a ridge, from X^T X projected to the matrices that it can be.

    Noise makes eigenvalues negative, which no X^T X has: they become zero before the ridge is added, so that the
    system is positive definite whatever was drawn.

    >>> solve(Statistics(torch.diag(torch.tensor([1.0, -5.0])), torch.ones(2, 1), noise_std=1.0), ridge=1.0)
    tensor([[0.5000],
            [1.0000]])
    """
    validate.positive(ridge=ridge)
    eigenvalues, eigenvectors = torch.linalg.eigh(statistics.gram)
    weights: Tensor = eigenvectors @ (eigenvectors.T @ statistics.moment / (eigenvalues.clamp(min=0) + ridge)[:, None])
    return weights


def fit_ssp(
    data: Data | Budget,
    features: Features,
    *,
    num_classes: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    ridge: float | None = None,
    seed: int | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
) -> FittedLinear:
    """Least squares on random features by one noisy release of X^T X and X^T Y that costs at most (epsilon, delta).

    The ridge is public: as large as the noise's eigenvalues are, unless said. `data` may be a `Budget`, and then the
    target is for all that it holds.

    >>> from sordino.convex.random_features import RandomReLU
    >>> data = (torch.randn(1000, 3), torch.randint(2, (1000,)))
    >>> fitted = fit_ssp(data, RandomReLU(width=20), num_classes=2, epsilon=1.0, delta=1e-5, seed=0)
    >>> fitted.model(torch.randn(5, 3)).shape, fitted.guarantee.epsilon <= 1.0
    (torch.Size([5, 2]), True)
    """
    budget = prepared(data, adjacency, epsilon, delta, allow_weak=allow_weak, allow_large_delta=allow_large_delta)
    summation = Summation.of(budget.records, features, num_classes)

    def event(noise_multiplier: float) -> DpEvent:
        return ComposedDpEvent([budget.event, summation.event(noise_multiplier, adjacency)])

    multiplier = smallest(event, adjacency, epsilon=epsilon, delta=delta)
    statistics = release_statistics(
        budget, features, num_classes=num_classes, noise_multiplier=multiplier, adjacency=adjacency, seed=seed
    )
    ridge = typical_noise(statistics) if ridge is None else ridge
    model = LinearModel(features, summation.input_shape, solve(statistics, ridge))
    return FittedLinear(model, budget.guarantee(delta=delta), multiplier, ridge)


def prepared(
    data: Data | Budget,
    adjacency: Adjacency,
    epsilon: float,
    delta: float,
    *,
    allow_weak: bool,
    allow_large_delta: bool,
) -> Budget:
    """The budget of the data, if the target is one that can be promised for it."""
    check_target(epsilon, delta, allow_weak=allow_weak)
    validate.instance(Adjacency, adjacency=adjacency)
    if adjacency is Adjacency.ADD_OR_REMOVE:
        raise UsageError("a fit takes the number of units as public: say zero-out or replace-one, got add-or-remove.")
    budget = data if isinstance(data, Budget) else Budget(data)
    check_delta_for(budget.records.num_units, delta, allow_large_delta=allow_large_delta)
    return budget
