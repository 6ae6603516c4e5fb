"""Ridge regression from released sufficient statistics: SSP and AdaSSP.

Least squares from released statistics: the model that sufficient statistics perturbation gives.

AdaSSP (Wang 2018): least squares from noisy statistics, with a ridge that a noisy smallest eigenvalue may lower.

Where X^T X is far from singular, noise on it needs no ridge; where it is singular, the ridge has to outweigh the noise.
The published method spends epsilon / 3 on each of three releases, with a bound on each. All three are Gaussian
mechanisms, and these compose without loss: the squares of sensitivity over noise add up (Dong, Roth and Su 2022). So
one equation for the whole target says how much noise is enough, and the eigenvalue, one number, gets the smallest part.

Guarantee: the matrix that a row adds, x x^T, is positive and its largest eigenvalue is at most B^2. By Weyl's
inequality the smallest eigenvalue of X^T X moves by at most B^2 when a row is left out, and by no more when it is
replaced, because one row raises it and the other lowers it. Of a user the matrix has a norm of at most the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee, smallest
from sordino.accounting.guarantee import Unit
from sordino.convex.random_features import FeatureMap, Features
from sordino.convex.sufficient_statistics import Statistics, Summation, key_of, release_statistics
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, Release
from sordino.kernel.calibration import check_delta_for, check_target
from sordino.kernel.noise import Gaussian
from sordino.kernel.records import Data
from sordino.kernel.states import BoundedSum, Layout


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


_TIMES_THE_NOISE = 3.0  # the eigenvalue then takes about a tenth of what the statistics cost
_DEVIATIONS = 2.0  # by which the eigenvalue is taken lower than it was released


@dataclass(frozen=True)
class Releases:
    """The two releases of one fit, by the noise multiplier of the statistics."""

    summation: Summation
    adjacency: Adjacency

    @property
    def eigenvalue_bound(self) -> float:
        """How far one unit moves the smallest eigenvalue of X^T X, whether it is left out or replaced."""
        return self.summation.features.bound**2 if self.summation.unit is Unit.EXAMPLE else self.summation.bound

    def events(self, noise_multiplier: float) -> tuple[DpEvent, DpEvent]:
        """That of the statistics and that of the eigenvalue."""
        # A replacement moves a sum by two bounds and this eigenvalue by one, as if its noise were twice as large.
        share = 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        eigenvalue = GaussianDpEvent(share * _TIMES_THE_NOISE * noise_multiplier)
        return self.summation.event(noise_multiplier, self.adjacency), eigenvalue

    def smallest_eigenvalue(self, total: BoundedSum) -> BoundedSum:
        """Not a sum, and yet no unit moves it by more than the bound, which is what noise leans on."""
        smallest = torch.linalg.eigvalsh(self.summation.gram(total))[:1]
        # Weyl's inequality: an eigenvalue moves by the spectral norm of what a unit adds, at most.
        return BoundedSum.of_sensitivity(smallest, self.eigenvalue_bound, Layout(("smallest",), ((1,),)))


def fit_adassp(
    data: Data | Budget,
    features: Features,
    *,
    num_classes: int,
    epsilon: float,
    delta: float,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
    seed: int | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
) -> FittedLinear:
    """Least squares on random features with a ridge that adapts to the data, for at most (epsilon, delta) in all.

    >>> from sordino.convex.random_features import RandomReLU
    >>> data = (torch.randn(1000, 3), torch.randint(2, (1000,)))
    >>> fitted = fit_adassp(data, RandomReLU(width=20), num_classes=2, epsilon=1.0, delta=1e-5, seed=0)
    >>> 0.99 < fitted.guarantee.epsilon <= 1.0
    True
    """
    budget = prepared(data, adjacency, epsilon, delta, allow_weak=allow_weak, allow_large_delta=allow_large_delta)
    releases = Releases(Summation.of(budget.records, features, num_classes), adjacency)

    def event(noise_multiplier: float) -> DpEvent:
        return ComposedDpEvent([budget.event, *releases.events(noise_multiplier)])

    multiplier = smallest(event, adjacency, epsilon=epsilon, delta=delta)
    noise, eigenvalue_noise = Gaussian(multiplier), Gaussian(_TIMES_THE_NOISE * multiplier)
    key, of_statistics, of_eigenvalue = key_of(seed, None), *releases.events(multiplier)
    budget.check(ComposedDpEvent([of_statistics, of_eigenvalue]), adjacency, what="statistics and their eigenvalue")

    def opened(what: str, noise: Gaussian, event: DpEvent) -> Release:
        return budget.open(what, noise=noise, adjacency=adjacency, key=key, event=event, delta=delta)

    of_sum = opened("sufficient statistics", noise, of_statistics)
    of_smallest = opened("smallest eigenvalue", eigenvalue_noise, of_eigenvalue)
    total = releases.summation.total(budget.records)
    private, eigenvalue = of_sum.add(total), of_smallest.add(releases.smallest_eigenvalue(total))
    statistics = releases.summation.statistics(private, noise.std(total.bound))
    at_least = float(eigenvalue.value) - _DEVIATIONS * eigenvalue_noise.std(releases.eigenvalue_bound)
    ridge = adaptive_ridge(statistics, at_least)
    model = LinearModel(features, releases.summation.input_shape, solve(statistics, ridge))
    return FittedLinear(model, budget.guarantee(delta=delta), multiplier, ridge)


def adaptive_ridge(statistics: Statistics, smallest_eigenvalue: float) -> float:
    """What the smallest eigenvalue leaves of the largest one of the noise, and never less than one of its numbers.

    >>> adaptive_ridge(Statistics(torch.eye(50), torch.ones(50, 1), noise_std=1.0), smallest_eigenvalue=4.0)
    6.0
    """
    largest_of_noise = 2 * typical_noise(statistics)  # Wigner's semicircle ends at twice its root mean square
    return max(largest_of_noise - max(0.0, smallest_eigenvalue), statistics.noise_std)
