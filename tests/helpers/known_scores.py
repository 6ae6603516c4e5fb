"""Scores whose truth is known, for every test of the bounds."""

import numpy as np

from sordino.attacks.audit.scores import Scores


def shifted(mu, canaries, seed):
    """Scores of one Gaussian release: N(mu, 1) of those that are in, N(0, 1) of the others."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    return Scores(mu * included + rng.standard_normal(canaries), included)
