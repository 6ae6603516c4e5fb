"""Who is included: thrown before training, and independent of all that training draws."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino.kernel.randomness import Key


def coins(canaries: int, key: Key) -> NDArray[np.bool_]:
    """A fair coin for each canary, from a stream that decides nothing else of a training.

    >>> int(coins(1000, Key.from_seed(0)).sum())
    509
    """
    return key.stream("coins of canaries").uniforms(canaries, step=0) < 0.5
