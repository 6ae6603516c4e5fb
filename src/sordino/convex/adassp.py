"""AdaSSP (Wang 2018): least squares from noisy statistics, with a ridge that a noisy smallest eigenvalue may lower.

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

import torch
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, GaussianDpEvent

from sordino.accounting import Adjacency, smallest
from sordino.accounting.guarantee import Unit
from sordino.convex.random_features import Features
from sordino.convex.ridge import FittedLinear, LinearModel, prepared, solve, typical_noise
from sordino.convex.sufficient_statistics import Statistics, Summation, key_of
from sordino.kernel.budget import Budget, Release
from sordino.kernel.noise import Gaussian
from sordino.kernel.records import Data
from sordino.kernel.states import BoundedSum, Layout

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
