"""Choice of the batch size of a hidden-state run. It uses the accountant only and reads no data.

A step adds noise of standard deviation sigma C / b to the mean gradient. For a given number of steps and a given
epsilon the full batch needs the least noise and the most computation. Smaller batches are cheaper and need slightly
more noise, mainly because the examples of the last batch are used last; trailing steps without data protect these. The
choice is therefore the smallest batch size whose noise is within a few percent of the minimum.
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

# Trailing steps add noise that no later step with data corrects, so only short ones are tried.
_TRAILING_FRACTIONS = (0, 1 / 16, 1 / 8, 1 / 4)
_GRID = 60
_TOLERANCE = 0.02


@dataclass(frozen=True)
class BatchChoice:
    """The number of batches, epochs and trailing steps, and the noise that they need.

    `noise` is relative to the noise of as many full-batch steps, which is the minimum.
    """

    batches_per_epoch: int
    epochs: int
    trailing_steps: int
    noise: float

    def applied_to(self, plan: NoisyCGD) -> NoisyCGD:
        """Returns the plan with these batches. Calibrate its noise afterwards."""
        sampler = Cyclic(self.batches_per_epoch, self.epochs, plan.adjacency)
        return replace(plan, sampler=sampler, trailing_steps=self.trailing_steps)


@lru_cache(maxsize=64)
def choose_batches(steps: int, *, examples: int, slack: float = 0.05) -> BatchChoice:
    """Returns the smallest batches, for about `steps` steps, whose noise is within a factor 1 + `slack` of the minimum.

    Meant for runs without a ridge term, whose steps need not contract.

    >>> choose_batches(9000, examples=60_000)  # doctest: +ELLIPSIS
    BatchChoice(batches_per_epoch=274, epochs=33, trailing_steps=68, noise=1.0479...)
    """
    validate.count(steps=steps, examples=examples)
    validate.between(0, 10, slack=slack)
    candidates = list(_candidates(steps, examples))
    good = (choice for choice in candidates if choice.noise <= (1 + slack) * candidates[0].noise)
    return max(good, key=lambda choice: (choice.batches_per_epoch, -choice.noise))


def given_batches(batches: int, steps: int) -> BatchChoice:
    """Returns the choice with this number of batches, about `steps` steps, and the best number of trailing steps.

    >>> given_batches(60, steps=1200).trailing_steps
    15
    """
    validate.count(batches=batches, steps=steps)
    epochs = max(1, round(steps / batches))
    return min(_with_trailing_steps(batches, epochs), key=lambda choice: choice.noise)


def _candidates(steps: int, examples: int) -> Iterator[BatchChoice]:
    """Batch counts on a geometric grid for which a whole number of epochs has about `steps` steps."""
    grid = {round(steps ** (i / _GRID)) for i in range(_GRID + 1)}
    for batches in sorted(count for count in grid if count <= examples):
        epochs = round(steps / batches)
        if abs(batches * epochs - steps) <= _TOLERANCE * steps:
            yield from _with_trailing_steps(batches, epochs)


def _with_trailing_steps(batches: int, epochs: int) -> Iterator[BatchChoice]:
    for trailing_steps in sorted({round(fraction * batches) for fraction in _TRAILING_FRACTIONS}):
        yield BatchChoice(batches, epochs, trailing_steps, _noise(batches, epochs, trailing_steps))


def _noise(batches: int, epochs: int, trailing_steps: int) -> float:
    """The noise of the mean gradient at mu = 1, per square root of the number of steps with data.

    The noise of trailing steps counts as if it were spread over the steps with data.
    """
    with_data, total = batches * epochs, batches * epochs + trailing_steps
    steps = Steps.constant(total, contraction=1.0, noise_multiplier=1.0)
    # mu is inversely proportional to the noise; the first or the last batch has the largest mu
    mu = max(mu_of_cycle(steps, batches=batches, epochs=epochs, position=place) for place in {0, batches - 1})
    return mu * batches * math.sqrt(total / with_data) / math.sqrt(with_data)
