"""Ridge regression from noisy sufficient statistics X^T X and X^T Y: SSP and AdaSSP.

SSP (sufficient statistics perturbation) solves the ridge regression of the noisy statistics. AdaSSP (Wang 2018) also
releases the smallest eigenvalue of X^T X and lowers the ridge where this eigenvalue is large. If X^T X is far from
singular, its noise needs no ridge; if it is singular, the ridge must exceed the noise.

The published AdaSSP spends epsilon / 3 on each of three releases. All three are Gaussian mechanisms, and these compose
without loss: the squares of sensitivity / noise add up (Dong, Roth and Su 2022). So one equation for the total epsilon
gives the noise, and the scalar eigenvalue gets the smallest part of it.

Guarantee: a row adds x x^T, which is positive semidefinite with largest eigenvalue at most B^2. By Weyl's inequality
the smallest eigenvalue of X^T X changes by at most B^2 when a row is removed. It changes by no more when a row is
replaced, because one row raises it and the other lowers it. The matrix that a user adds has at most the bound as norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import SEED_STAYS_SECRET, Adjacency, Guarantee, smallest
from sordino.accounting.guarantee import Unit
from sordino.convex.random_features import FeatureMap, Features
from sordino.convex.sufficient_statistics import Statistics, Summation, key_of, release_statistics
from sordino.errors import UsageError
from sordino.kernel.budget import Budget, Release
from sordino.kernel.calibration import check_delta_for, check_target
from sordino.kernel.noise import Gaussian, check_tail
from sordino.kernel.records import Data
from sordino.kernel.states import BoundedSum, Layout


class LinearModel(nn.Module):
    """Maps raw inputs to random features and these to one score per class; the largest score is the prediction."""

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
    """A linear model on random features, its privacy guarantee, and the noise and ridge that were used."""

    model: LinearModel
    guarantee: Guarantee
    noise_multiplier: float
    ridge: float


def typical_noise(statistics: Statistics) -> float:
    """The root mean square of the eigenvalues of the noise on X^T X. Smaller eigenvalues are mostly noise."""
    return statistics.noise_std * sqrt(len(statistics.gram) / 2)


def solve(statistics: Statistics, ridge: float) -> Tensor:
    """Solves ridge regression for weights (f, k), with X^T X projected to the positive semidefinite matrices.

    Noise can make eigenvalues negative. They are set to zero before the ridge is added, so that the system is positive
    definite for every draw of the noise.

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
    """Fits ridge regression on random features from one noisy release of X^T X and X^T Y, at most (epsilon, delta).

    The ridge is public; by default it is `typical_noise`. `epsilon` and the returned guarantee are those of this fit.
    If `data` is a `Budget`, its own guarantee counts all releases.

    >>> from sordino.convex.random_features import RandomReLU
    >>> data = (torch.randn(1000, 3), torch.randint(2, (1000,)))
    >>> fitted = fit_ssp(data, RandomReLU(width=20), num_classes=2, epsilon=1.0, delta=1e-5, seed=0)
    >>> fitted.model(torch.randn(5, 3)).shape, fitted.guarantee.epsilon <= 1.0
    (torch.Size([5, 2]), True)
    """
    budget = prepared(data, adjacency, epsilon, delta, allow_weak=allow_weak, allow_large_delta=allow_large_delta)
    summation = Summation.of(budget.records, features, num_classes)

    def event(noise_multiplier: float) -> DpEvent:
        return summation.event(noise_multiplier, adjacency)

    multiplier = _calibrated(event, budget, adjacency, epsilon=epsilon, delta=delta)
    statistics = release_statistics(
        budget, features, num_classes=num_classes, noise_multiplier=multiplier, adjacency=adjacency, seed=seed
    )
    ridge = typical_noise(statistics) if ridge is None else ridge
    model = LinearModel(features, summation.input_shape, solve(statistics, ridge))
    return FittedLinear(model, _guarantee(budget, event(multiplier), adjacency, delta, seed), multiplier, ridge)


def prepared(
    data: Data | Budget,
    adjacency: Adjacency,
    epsilon: float,
    delta: float,
    *,
    allow_weak: bool,
    allow_large_delta: bool,
) -> Budget:
    """Returns the budget of the data. Raises an error if the target (epsilon, delta) is not possible for it."""
    check_target(epsilon, delta, allow_weak=allow_weak)
    validate.instance(Adjacency, adjacency=adjacency)
    if adjacency is Adjacency.ADD_OR_REMOVE:
        raise UsageError(
            "adjacency must be zero-out or replace-one, because the number of units is public here, got add-or-remove."
        )
    budget = data if isinstance(data, Budget) else Budget(data)
    check_delta_for(budget.records.num_units, delta, allow_large_delta=allow_large_delta)
    return budget


def _calibrated(
    event: Callable[[float], DpEvent], budget: Budget, adjacency: Adjacency, *, epsilon: float, delta: float
) -> float:
    """The smallest noise multiplier for the target. Refuses a fit without room in the budget, and says what would."""
    multiplier = smallest(event, adjacency, epsilon=epsilon, delta=delta)
    budget.check_target(event, multiplier, adjacency, what="least-squares fit", delta=delta, epsilon=epsilon)
    check_tail(Gaussian(multiplier), adjacency, steps=1, delta=delta)
    return multiplier


def _guarantee(
    budget: Budget, event: DpEvent, adjacency: Adjacency, delta: float, seed: int | None, own: int = 1
) -> Guarantee:
    assumptions = () if seed is None else (SEED_STAYS_SECRET,)
    return budget.guarantee_of(event, adjacency, delta=delta, assumptions=assumptions, own=own)


_EIGENVALUE_NOISE_RATIO = 3.0  # relative to the statistics' noise multiplier: the eigenvalue costs about a tenth
_DEVIATIONS = 2.0  # the lower bound of the eigenvalue is this many standard deviations below its release


@dataclass(frozen=True)
class Releases:
    """The two releases of AdaSSP: the statistics and their smallest eigenvalue."""

    summation: Summation
    adjacency: Adjacency

    @property
    def eigenvalue_bound(self) -> float:
        """The sensitivity of the smallest eigenvalue of X^T X, for a unit that is removed or replaced."""
        return self.summation.features.bound**2 if self.summation.unit is Unit.EXAMPLE else self.summation.bound

    def events(self, noise_multiplier: float) -> tuple[DpEvent, DpEvent]:
        """The events of the statistics and of the eigenvalue."""
        # Replacing a unit moves a sum by two bounds but this eigenvalue by one: its relative noise is twice as large.
        factor = 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        eigenvalue = GaussianDpEvent(factor * _EIGENVALUE_NOISE_RATIO * noise_multiplier)
        return self.summation.event(noise_multiplier, self.adjacency), eigenvalue

    def smallest_eigenvalue(self, total: BoundedSum) -> BoundedSum:
        """The smallest eigenvalue. It is not a sum, but no unit moves it by more than the bound, as noise requires."""
        smallest = torch.linalg.eigvalsh(self.summation.gram(total))[:1]
        # Weyl's inequality: an eigenvalue moves by at most the spectral norm of the matrix that a unit adds.
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
    """Fits ridge regression on random features with a ridge that adapts to the data, at most (epsilon, delta) in total.

    `epsilon` and the returned guarantee are those of this fit, as in `fit_ssp`.

    >>> from sordino.convex.random_features import RandomReLU
    >>> data = (torch.randn(1000, 3), torch.randint(2, (1000,)))
    >>> fitted = fit_adassp(data, RandomReLU(width=20), num_classes=2, epsilon=1.0, delta=1e-5, seed=0)
    >>> 0.99 < fitted.guarantee.epsilon <= 1.0
    True
    """
    budget = prepared(data, adjacency, epsilon, delta, allow_weak=allow_weak, allow_large_delta=allow_large_delta)
    releases = Releases(Summation.of(budget.records, features, num_classes), adjacency)

    def event(noise_multiplier: float) -> DpEvent:
        return ComposedDpEvent([*releases.events(noise_multiplier)])

    multiplier = _calibrated(event, budget, adjacency, epsilon=epsilon, delta=delta)
    noise, eigenvalue_noise = Gaussian(multiplier), Gaussian(_EIGENVALUE_NOISE_RATIO * multiplier)
    key, statistics_event, eigenvalue_event = key_of(seed, None), *releases.events(multiplier)

    def open_release(what: str, noise: Gaussian, event: DpEvent) -> Release:
        return budget.open(what, noise=noise, adjacency=adjacency, key=key, event=event, delta=delta)

    statistics_release = open_release("sufficient statistics", noise, statistics_event)
    eigenvalue_release = open_release("smallest eigenvalue", eigenvalue_noise, eigenvalue_event)
    total = releases.summation.total(budget.records)
    private = statistics_release.add(total)
    eigenvalue = eigenvalue_release.add(releases.smallest_eigenvalue(total))
    statistics = releases.summation.statistics(private, noise.std(total.bound))
    lower_bound = float(eigenvalue.value) - _DEVIATIONS * eigenvalue_noise.std(releases.eigenvalue_bound)
    ridge = adaptive_ridge(statistics, lower_bound)
    model = LinearModel(features, releases.summation.input_shape, solve(statistics, ridge))
    guarantee = _guarantee(budget, event(multiplier), adjacency, delta, seed, own=2)
    return FittedLinear(model, guarantee, multiplier, ridge)


def adaptive_ridge(statistics: Statistics, smallest_eigenvalue: float) -> float:
    """The largest eigenvalue of the noise minus the smallest eigenvalue of X^T X, but at least the noise of one entry.

    >>> adaptive_ridge(Statistics(torch.eye(50), torch.ones(50, 1), noise_std=1.0), smallest_eigenvalue=4.0)
    6.0
    """
    noise_eigenvalue = 2 * typical_noise(statistics)  # Wigner's semicircle ends at twice its root mean square
    return max(noise_eigenvalue - max(0.0, smallest_eigenvalue), statistics.noise_std)
