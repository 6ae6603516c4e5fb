"""How large the batches of a hidden run should be, decided by the accountant alone: no data is looked at.

A step adds noise of standard deviation sigma C / b to the mean gradient. At a fixed number of steps and a fixed epsilon
this noise is least for the full batch, which is also the dearest; smaller batches cost less to compute and a little
more noise, most of it for whoever is in the last batch, which trailing steps hide. So: the smallest batches whose noise
is within a few percent of the least.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from sordino._input import validate
from sordino.accounting.hidden_state import Steps, mu_of_cycle
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.kernel.sampling import Cyclic

# Trailing steps add noise that no step with data draws back any more, so they are few.
_SHARES_OF_A_CYCLE = (0, 1 / 16, 1 / 8, 1 / 4)
_GRID = 60
_TOLERANCE = 0.02


@dataclass(frozen=True)
class BatchChoice:
    """So many batches take turns for so many epochs, and then come steps without data.

    `noise` is relative to that of full batches with as many steps, whose noise is the least.
    """

    batches_per_epoch: int
    epochs: int
    trailing_steps: int
    noise: float

    def applied_to(self, plan: NoisyCGD) -> NoisyCGD:
        """The plan with these batches; its noise is still to be calibrated."""
        sampler = Cyclic(self.batches_per_epoch, self.epochs, plan.adjacency)
        return replace(plan, sampler=sampler, trailing_steps=self.trailing_steps)


@lru_cache(maxsize=64)
def choose_batches(steps: int, *, examples: int, slack: float = 0.05) -> BatchChoice:
    """The smallest batches, for about so many steps, whose noise is within `slack` of the least there is.

    It is meant for runs without a ridge term, whose steps need not contract.

    >>> choose_batches(9000, examples=60_000)  # doctest: +ELLIPSIS
    BatchChoice(batches_per_epoch=274, epochs=33, trailing_steps=68, noise=1.0479...)
    """
    validate.count(steps=steps, examples=examples)
    validate.between(0, 10, slack=slack)
    offered = list(_offered(steps, examples))
    good = (choice for choice in offered if choice.noise <= (1 + slack) * offered[0].noise)
    return max(good, key=lambda choice: (choice.batches_per_epoch, -choice.noise))


def given_batches(batches: int, steps: int) -> BatchChoice:
    """So many batches for about so many steps, with the trailing steps that suit them best.

    >>> given_batches(60, steps=1200).trailing_steps
    15
    """
    validate.count(batches=batches, steps=steps)
    epochs = max(1, round(steps / batches))
    return min(_with_trailing_steps(batches, epochs), key=lambda choice: choice.noise)


def _offered(steps: int, examples: int) -> Iterator[BatchChoice]:
    """Numbers of batches with whole epochs that make about so many steps."""
    grid = {round(steps ** (place / _GRID)) for place in range(_GRID + 1)}
    for batches in sorted(number for number in grid if number <= examples):
        epochs = round(steps / batches)
        if abs(batches * epochs - steps) <= _TOLERANCE * steps:
            yield from _with_trailing_steps(batches, epochs)


def _with_trailing_steps(batches: int, epochs: int) -> Iterator[BatchChoice]:
    for trailing_steps in sorted({round(share * batches) for share in _SHARES_OF_A_CYCLE}):
        yield BatchChoice(batches, epochs, trailing_steps, _noise(batches, epochs, trailing_steps))


def _noise(batches: int, epochs: int, trailing_steps: int) -> float:
    """Of the mean gradient at mu = 1 and per square root of a step, which is what adds up.

    Trailing steps add theirs too: as if every step had a little more.
    """
    with_data, taken = batches * epochs, batches * epochs + trailing_steps
    steps = Steps.constant(taken, contraction=1.0, noise_multiplier=1.0)
    # mu falls as the noise grows, in proportion; the first batch or the last is the worst placed
    mu = max(mu_of_cycle(steps, batches=batches, epochs=epochs, position=place) for place in {0, batches - 1})
    return mu * batches * math.sqrt(taken / with_data) / math.sqrt(with_data)
