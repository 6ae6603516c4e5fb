"""RMIA, the relative membership inference attack (Zarifzadeh, Liu and Shokri 2024).

The score of a row x is the fraction of population rows z with LR(x, z) >= gamma, for the likelihood ratio
LR(x, z) = (p(x | model) / p(x)) / (p(z | model) / p(z)). Here p(x) is the mean likelihood over reference models, half
of which should have been trained on x. The offline attack has only references that were not, and corrects their mean by
a line of slope a.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.errors import UsageError

Numbers = NDArray[np.float64]
Membership = NDArray[np.bool_]

_LEAST = 1e-300  # smallest likelihood, so that ratios stay finite


@dataclass(frozen=True)
class Rmia:
    """`gamma` is the threshold of the likelihood ratio, `a` the slope of the offline correction p_in = a p_out + 1 - a.

    >>> Rmia(gamma=1.0).scores(np.array([0.9, 0.1]), np.array([0.5, 0.2]), np.array([0.3, 0.6]), np.array([0.3, 0.3]))
    array([0.5, 0. ])
    """

    gamma: float = 2.0
    a: float = 0.3

    def __post_init__(self) -> None:
        validate.between(1, 1e6, gamma=self.gamma)
        validate.between(0, 1, a=self.a)

    def online(self, references: Numbers, included: Membership) -> Numbers:
        """p(x) for the online attack: references trained on x and references that were not get equal total weight."""
        kinds = [chosen.sum(axis=0) for chosen in (included, ~included)]
        if min(int(kind.min()) for kind in kinds) < 1:
            raise UsageError("online RMIA needs, for each row, references trained on it and references that were not.")
        sums = (np.where(chosen, references, 0.0).sum(axis=0) for chosen in (included, ~included))
        marginal: Numbers = np.mean([total / kind for total, kind in zip(sums, kinds, strict=True)], axis=0)
        return marginal

    def offline(self, references: Numbers) -> Numbers:
        """p(x) for the offline attack, from references that were not trained on x: p_in is taken as a p_out + 1 - a.

        >>> Rmia(a=0.5).offline(np.array([[0.4], [0.6]]))
        array([0.625])
        """
        marginal: Numbers = ((1 + self.a) * references.mean(axis=0) + 1 - self.a) / 2
        return marginal

    def scores(self, target: Numbers, marginal: Numbers, population: Numbers, of_population: Numbers) -> Numbers:
        """The fraction of the population that each row exceeds: `marginal` is p(x), `of_population` is p(z)."""
        for values in (target, marginal, population, of_population):
            if not np.isfinite(values).all():
                raise UsageError("likelihoods must be finite numbers, got NaN or infinity.")
        if not len(population):
            raise UsageError("RMIA needs at least one row of the population, got none.")
        raised = np.maximum(target, _LEAST) / np.maximum(marginal, _LEAST)
        others = np.sort(np.maximum(population, _LEAST) / np.maximum(of_population, _LEAST))
        fractions: Numbers = np.searchsorted(others, raised / self.gamma, side="right") / len(others)
        return fractions
