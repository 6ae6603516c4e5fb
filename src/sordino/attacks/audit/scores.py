"""Scores of canaries, from which lower bounds on epsilon are computed.

What an audit is computed from: a score for each canary, and whether it was included.

Guarantee: every bound in this package holds for any scores whatever, if each canary was included by a fair coin of its
own, thrown before training. Good scores only make it larger.

The score of a canary that was looked for in every step: how much likelier the run is with it than without.

In a step that it joins, a canary adds its vector s to a sum with normal noise. If y is what is seen and v the variance
of the noise, the logarithm of the likelihood ratio of that step is

    l = sum_j y_j s_j / v_j - sum_j s_j^2 / (2 v_j)

which is (2 x - 1) / (2 sigma^2) for x = <y, s> / C^2 and noise of std sigma C on a canary of length C. Nobody sees
which steps it joined, so they are averaged over the sampler's law. No other score tells more (Neyman and Pearson 1933);
the plain sum of the x tells much less where few steps are joined.

The mechanism itself without a network: what a perfect white-box audit of Poisson-sampled steps sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.sampling import BallsInBins, Cyclic, Sampler, Shuffled

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Scores:
    """One score for each canary, higher where it looks included, and the coins. The order says nothing about the coins.

    >>> Scores(np.array([2.0, -1.0, 0.5]), np.array([True, False, True])).number
    3
    >>> Scores(np.array([2.0, 1.0]), np.array([True, True]))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: included must hold both outcomes of the coins, got all 2 canaries in.
    """

    values: Values = field(repr=False)
    included: Flags = field(repr=False)

    def __post_init__(self) -> None:
        values, included = np.asarray(self.values), np.asarray(self.included)
        if values.dtype.kind not in "fiub":
            raise UsageError(f"scores must be numbers, got {validate.described(values)}.")
        values = values.astype(np.float64)
        if values.ndim != 1 or values.shape != included.shape or included.dtype != np.bool_:
            raise UsageError(
                f"scores must be one number and one True or False per canary, got shapes {values.shape} and "
                f"{included.shape} of {included.dtype}."
            )
        if len(values) == 0:
            raise UsageError("scores must be of at least one canary, got none.")
        if np.isnan(values).any():
            raise UsageError(f"scores must be numbers, got {int(np.isnan(values).sum())} that are NaN.")
        if included.all() or not included.any():
            found = "in" if included.any() else "out"
            raise UsageError(f"included must hold both outcomes of the coins, got all {len(values)} canaries {found}.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "included", included)

    @property
    def number(self) -> int:
        return len(self.values)

    def halves(self, randomness: np.random.Generator) -> tuple[Scores, Scores]:
        """A half to choose on and a half to judge on. Who is in which is drawn without looking at scores or coins.

        So the coins of the second half are as fair as before, whatever was chosen on the first.
        """
        validate.count(at_least=4, canaries_to_split=self.number)
        order = randomness.permutation(self.number)
        first, second = order[: self.number // 2], order[self.number // 2 :]
        return Scores(self.values[first], self.included[first]), Scores(self.values[second], self.included[second])


def pooled(runs: list[Scores]) -> Scores:
    """The canaries of several independent trainings together: each of them still meets one release of the guarantee."""
    return Scores(np.concatenate([run.values for run in runs]), np.concatenate([run.included for run in runs]))


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


def simulated_scores(
    canaries: int, randomness: np.random.Generator, *, noise_multiplier: float, rate: float, steps: int
) -> Scores:
    """Scores of orthogonal canaries that are seen through `steps` exact Gaussian releases, sampled at `rate`.

    >>> scores = simulated_scores(100, np.random.default_rng(0), noise_multiplier=1.0, rate=0.5, steps=10)
    >>> bool(scores.values[scores.included].mean() > scores.values[~scores.included].mean())
    True
    """
    included = randomness.random(canaries) < 0.5
    joined = (randomness.random((steps, canaries)) < rate) & included
    seen = joined + noise_multiplier * randomness.standard_normal((steps, canaries))
    return Scores(EachStep(rate).score((2 * seen - 1) / (2 * noise_multiplier**2)), included)
