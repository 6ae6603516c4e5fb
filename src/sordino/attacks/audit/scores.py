"""Scores of canaries, from which lower bounds on epsilon are computed.

*Guarantee:* every bound in this package holds for arbitrary scores, if each canary was included by a fair coin of its
own that was tossed before training. Better scores only make the bound larger.

The white-box score of a canary is the log-likelihood ratio of the run with it and without it. In a step that draws it,
a canary adds its vector s to a sum with normal noise. If y is the observed release and v the variance of the noise, the
log-likelihood ratio of that step is

    l = sum_j y_j s_j / v_j - sum_j s_j^2 / (2 v_j)

which is (2 x - 1) / (2 sigma^2) for x = <y, s> / C^2, noise of standard deviation sigma C and a canary of norm C. The
attacker does not know which steps drew the canary, so the ratio is averaged over the distribution of the sampler. No
score has more power (Neyman and Pearson 1933); the plain sum of x has much less where few steps draw the canary.
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
    """One score for each canary, higher if it looks included, and whether it was included.

    The order of the canaries must not depend on the coins.

    >>> Scores(np.array([2.0, -1.0, 0.5]), np.array([True, False, True])).number
    3
    >>> Scores(np.array([2.0, 1.0]), np.array([True, True]))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: included must contain both True and False, got all 2 canaries included.
    """

    values: Values = field(repr=False)
    included: Flags = field(repr=False)

    def __post_init__(self) -> None:
        values, included = np.asarray(self.values), np.asarray(self.included)
        if values.dtype.kind not in "fiub":
            raise UsageError(f"values must be numbers, got {validate.described(values)}.")
        values = values.astype(np.float64)
        if values.ndim != 1 or values.shape != included.shape or included.dtype != np.bool_:
            raise UsageError(
                "values and included must be one number and one bool per canary, got shapes "
                f"{values.shape} and {included.shape} of {included.dtype}."
            )
        if len(values) == 0:
            raise UsageError("values must contain the score of at least one canary, got none.")
        if np.isnan(values).any():
            raise UsageError(f"values must be numbers, got {int(np.isnan(values).sum())} that are NaN.")
        if included.all() or not included.any():
            outcome = "included" if included.any() else "left out"
            raise UsageError(f"included must contain both True and False, got all {len(values)} canaries {outcome}.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "included", included)

    @property
    def number(self) -> int:
        return len(self.values)

    def halves(self, randomness: np.random.Generator) -> tuple[Scores, Scores]:
        """A random half to choose parameters on, and the other half to compute the bound from.

        The split is independent of scores and coins. So the coins of the second half are still fair, whatever was
        chosen on the first.
        """
        validate.count(at_least=4, canaries_to_split=self.number)
        order = randomness.permutation(self.number)
        first, second = order[: self.number // 2], order[self.number // 2 :]
        return Scores(self.values[first], self.included[first]), Scores(self.values[second], self.included[second])


def pooled(runs: list[Scores]) -> Scores:
    """Joins the canaries of several independent trainings. Each canary is in one training, so the guarantee holds."""
    return Scores(np.concatenate([run.values for run in runs]), np.concatenate([run.included for run in runs]))


Ratios = NDArray[np.float64]  # log-likelihood ratios l, shape (steps, canaries)


@dataclass(frozen=True)
class EachStep:
    """Each step draws a canary independently with probability `rate`: Poisson sampling, and nearly fixed-size batches.

    >>> EachStep(1.0).score(np.array([[0.5], [0.25]]))
    array([0.75])
    """

    rate: float

    def score(self, ratios: Ratios) -> Ratios:
        with np.errstate(divide="ignore"):  # at rate 1 the logarithm is -inf, which logaddexp handles
            absent = np.log1p(-self.rate)
        scores: Values = np.logaddexp(absent, np.log(self.rate) + ratios).sum(axis=0)
        return scores


@dataclass(frozen=True)
class OncePerEpoch:
    """One uniformly random step of the `period` steps of each epoch draws a canary: random allocation, shuffling.

    >>> OncePerEpoch(2).score(np.array([[np.log(3.0)], [0.0]])).round(4)  # log 2
    array([0.6931])
    """

    period: int

    def score(self, ratios: Ratios) -> Ratios:
        epochs = ratios.reshape(-1, self.period, ratios.shape[1])
        scores: Values = (logsumexp(epochs, axis=1) - np.log(self.period)).sum(axis=0)
        return scores


def law_of(sampler: Sampler, units: int) -> EachStep | OncePerEpoch:
    """The distribution of the steps that draw a canary, close enough for a good score. Any score is valid.

    A cyclic sampler is treated as a shuffled one; an attacker who knew a canary's place in the cycle could do better.
    """
    if isinstance(sampler, (Cyclic, Shuffled, BallsInBins)):
        return OncePerEpoch(sampler.period)
    return EachStep(min(1.0, sampler.expected_batch_size(units) / units))


def simulated_scores(
    canaries: int, randomness: np.random.Generator, *, noise_multiplier: float, rate: float, steps: int
) -> Scores:
    """Scores of orthogonal canaries in `steps` Gaussian releases with Poisson sampling at `rate`, without a network.

    They are those of a perfect white-box audit.

    >>> scores = simulated_scores(100, np.random.default_rng(0), noise_multiplier=1.0, rate=0.5, steps=10)
    >>> bool(scores.values[scores.included].mean() > scores.values[~scores.included].mean())
    True
    """
    included = randomness.random(canaries) < 0.5
    joined = (randomness.random((steps, canaries)) < rate) & included
    seen = joined + noise_multiplier * randomness.standard_normal((steps, canaries))
    return Scores(EachStep(rate).score((2 * seen - 1) / (2 * noise_multiplier**2)), included)
