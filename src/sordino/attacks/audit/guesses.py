"""Who is guessed to be in or out: so many of the highest scores, so many of the lowest, and nobody in between.

The numbers of guesses are fixed before the scores are seen: the theorems are stated for such. A score that ties with
one beyond the line could be on either side, so it is a guess, and counted as wrong: as if ties were broken by somebody
who wishes the audit ill. That is valid, because breaking them in any fixed order would find at least as many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino._input import validate
from sordino.attacks.audit.scores import Scores
from sordino.errors import UsageError


@dataclass(frozen=True)
class Guesses:
    """`guesses` of `canaries` were guessed, of which `correct` were right."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        validate.count(canaries=self.canaries)
        validate.count(at_most=self.canaries, guesses=self.guesses)
        validate.count(at_least=0, at_most=self.guesses, correct=self.correct)


@dataclass(frozen=True)
class Shares:
    """Which share of the canaries is guessed to be in, and which out. The others are not guessed.

    >>> scores = Scores(np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, True, False, False]))
    >>> Shares(inside=0.25, outside=0.5).of(scores)
    Guesses(canaries=4, guesses=3, correct=3)
    >>> Shares(inside=0.5, outside=0).of(Scores(np.zeros(4), scores.included))  # nothing is known of ties
    Guesses(canaries=4, guesses=2, correct=0)
    """

    inside: float
    outside: float

    def __post_init__(self) -> None:
        validate.between(0, 1, share_inside=self.inside, share_outside=self.outside)
        if not 0 < self.inside + self.outside <= 1:
            raise UsageError(
                f"shares of guesses must add up to (0, 1], "
                f"got {validate.shown(self.inside)} and {validate.shown(self.outside)}."
            )

    def of(self, scores: Scores) -> Guesses:
        inside = round(self.inside * scores.number)
        outside = min(round(self.outside * scores.number), scores.number - inside)
        if inside + outside == 0:
            raise UsageError(f"{scores.number} canaries are too few to guess a share of {self.inside + self.outside}.")
        right = _right(scores.values, scores.included, inside) + _right(-scores.values, ~scores.included, outside)
        return Guesses(scores.number, inside + outside, right)


# Few, because the best of many on one half is often the luckiest. Sampled steps show who was in more than who was out.
_SHARES = ((0.05, 0.02), (0.05, 0.05), (0.1, 0.05), (0.1, 0.1), (0.2, 0.1), (0.2, 0.2), (0.5, 0.5))
CANDIDATES = tuple(Shares(inside, outside) for inside, outside in _SHARES)
FIXED = Shares(0.05, 0.05)  # where nothing is chosen: good at most epsilons, and best at none


def _right(values: NDArray[np.float64], is_right: NDArray[np.bool_], number: int) -> int:
    """How many of the first `number` by value are right, not counting those that tie with the one after them."""
    if number == len(values):
        return int(is_right.sum())
    beyond = np.partition(values, -number - 1)[-number - 1]
    return int(is_right[values > beyond].sum())
