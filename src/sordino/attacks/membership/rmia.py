"""The relative attack RMIA (Zarifzadeh, Liu and Shokri 2024).

A row x is a member if the model raised its likelihood more than it raised that of most rows z of the population, by
LR(x, z) = (p(x | model) / p(x)) / (p(z | model) / p(z)) >= gamma. Here p(x) is the mean over reference models, half of
which should have learnt from x. Of references that did not, the mean is corrected on a line of slope a.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.errors import UsageError

Numbers = NDArray[np.float64]
Membership = NDArray[np.bool_]

_LEAST = 1e-300  # a likelihood: two rows that no model believes are alike


@dataclass(frozen=True)
class Rmia:
    """`gamma` is how much more x must have been raised than z, `a` how p in grows with p out in the offline correction.

    >>> Rmia(gamma=1.0).scores(np.array([0.9, 0.1]), np.array([0.5, 0.2]), np.array([0.3, 0.6]), np.array([0.3, 0.3]))
    array([0.5, 0. ])
    """

    gamma: float = 2.0
    a: float = 0.3

    def __post_init__(self) -> None:
        validate.between(1, 1e6, gamma=self.gamma)
        validate.between(0, 1, a=self.a)

    def online(self, references: Numbers, included: Membership) -> Numbers:
        """p(x): the mean of both kinds of references, each kind with half the weight."""
        kinds = [chosen.sum(axis=0) for chosen in (included, ~included)]
        if min(int(kind.min()) for kind in kinds) < 1:
            raise UsageError("the online attack needs references that learnt from each row, and some that did not.")
        sums = (np.where(chosen, references, 0.0).sum(axis=0) for chosen in (included, ~included))
        found: Numbers = np.mean([total / kind for total, kind in zip(sums, kinds, strict=True)], axis=0)
        return found

    def offline(self, references: Numbers) -> Numbers:
        """p(x) from references that did not learn from x: p in is taken as a p out + 1 - a.

        >>> Rmia(a=0.5).offline(np.array([[0.4], [0.6]]))
        array([0.625])
        """
        found: Numbers = ((1 + self.a) * references.mean(axis=0) + 1 - self.a) / 2
        return found

    def scores(self, target: Numbers, marginal: Numbers, population: Numbers, of_population: Numbers) -> Numbers:
        """The share of the population that each row exceeds: `marginal` is p(x), `of_population` is p(z)."""
        for values in (target, marginal, population, of_population):
            if not np.isfinite(values).all():
                raise UsageError("likelihoods must be finite numbers, got NaN or an infinite one.")
        if not len(population):
            raise UsageError("the attack compares with rows of the population, got none.")
        raised = np.maximum(target, _LEAST) / np.maximum(marginal, _LEAST)
        others = np.sort(np.maximum(population, _LEAST) / np.maximum(of_population, _LEAST))
        found: Numbers = np.searchsorted(others, raised / self.gamma, side="right") / len(others)
        return found
