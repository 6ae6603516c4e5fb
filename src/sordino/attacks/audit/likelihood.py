"""The score of a canary that was looked for in every step: how much likelier the run is with it than without.

In a step that it joins, a canary adds its vector s to a sum with normal noise. If y is what is seen and v the variance
of the noise, the logarithm of the likelihood ratio of that step is

    l = sum_j y_j s_j / v_j - sum_j s_j^2 / (2 v_j)

which is (2 x - 1) / (2 sigma^2) for x = <y, s> / C^2 and noise of std sigma C on a canary of length C. Nobody sees
which steps it joined, so they are averaged over the sampler's law. No other score tells more (Neyman and Pearson 1933);
the plain sum of the x tells much less where few steps are joined.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sordino.kernel.sampling import BallsInBins, Cyclic, Sampler, Shuffled

Ratios = NDArray[np.float64]  # (steps, canaries): l of each step


@dataclass(frozen=True)
class EachStep:
    """Each step is joined with the chance `rate`, whatever happened before: Poisson sampling, and nearly fixed sizes.

    >>> EachStep(1.0).score(np.array([[0.5], [0.25]]))
    array([0.75])
    """

    rate: float

    def score(self, ratios: Ratios) -> Ratios:
        with np.errstate(divide="ignore"):  # at a rate of 1 there is no other possibility
            absent = np.log1p(-self.rate)
        found: Ratios = np.logaddexp(absent, np.log(self.rate) + ratios).sum(axis=0)
        return found


@dataclass(frozen=True)
class OncePerEpoch:
    """One of the `period` steps of each epoch is joined, all of them equally likely: random allocation, shuffling.

    >>> OncePerEpoch(2).score(np.array([[np.log(3.0)], [0.0]])).round(4)  # log 2
    array([0.6931])
    """

    period: int

    def score(self, ratios: Ratios) -> Ratios:
        epochs = ratios.reshape(-1, self.period, ratios.shape[1])
        found: Ratios = (logsumexp(epochs, axis=1) - np.log(self.period)).sum(axis=0)
        return found


def law_of(sampler: Sampler, units: int) -> EachStep | OncePerEpoch:
    """How canaries join the steps of a sampler, as nearly as matters: any score is valid, a good one shows more.

    A cycle is taken for a shuffle: who knows the place of a canary in it could do better.
    """
    if isinstance(sampler, (Cyclic, Shuffled, BallsInBins)):
        return OncePerEpoch(sampler.period)
    return EachStep(min(1.0, sampler.expected_batch_size(units) / units))
