"""Scores with a known privacy parameter, for tests of audit bounds."""

import numpy as np

from sordino.attacks.audit.scores import Scores


def shifted(mu, canaries, seed):
    """Scores of one Gaussian release: N(mu, 1) for included canaries, N(0, 1) for the others."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    return Scores(mu * included + rng.standard_normal(canaries), included)
