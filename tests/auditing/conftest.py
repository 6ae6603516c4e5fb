"""Scores whose truth is known, for every test of the bounds."""

import numpy as np
import pytest

from sordino.auditing.scores import Scores


@pytest.fixture
def shifted():
    """Scores of one Gaussian release: N(mu, 1) of those that are in, N(0, 1) of the others."""

    def draw(mu, canaries, seed):
        rng = np.random.default_rng(seed)
        included = rng.random(canaries) < 0.5
        return Scores(mu * included + rng.standard_normal(canaries), included)

    return draw
