"""The mechanism itself without a network: what a perfect white-box audit of Poisson-sampled steps sees."""

from __future__ import annotations

import numpy as np

from sordino.attacks.audit.likelihood import EachStep
from sordino.attacks.audit.scores import Scores


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
