"""Settings of a convex ReLU network that work, decided from what is public: the number of units, and what may be spent.

Let mu be what one Gaussian release of the whole target may reveal. In T steps of length eta, clipped at C, noise moves
the outputs by about C eta T / (n mu), whatever the batches are: for gradient descent on all n units by composition, for
batches that take turns by the hidden-state bound, for Poisson batches by subsampling. So the way C eta T that a model
may go is a share of n mu, and the batches are left to decide how long it takes to compute. A loss of smoothness M has
steps in units of 1 / M, and outputs too: those of the logistic loss are about four times as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from dp_accounting.dp_event import GaussianDpEvent

from sordino._input import validate
from sordino.accounting import Adjacency, smallest
from sordino.convex.losses import Curvature

_SHARE_OF_NOISE = 0.2
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class Settings:
    """How long to train, in steps of which length, on batches of which size."""

    clip: float
    learning_rate: float
    batches_per_epoch: int
    epochs: int


@dataclass(frozen=True)
class Target:
    """What one fit may cost, and between which neighbours."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    @property
    def mu(self) -> float:
        """The Gaussian differential privacy that the target amounts to.

        >>> round(Target(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT).mu, 3)
        0.268
        """
        return 1 / smallest(GaussianDpEvent, self.adjacency, epsilon=self.epsilon, delta=self.delta)


def settings_for(
    target: Target,
    units: int,
    *,
    curvature: Curvature,
    clip: float,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    strength: float = 0.0,
) -> Settings:
    """A value for whatever is None. More units, or more epsilon, are used for longer training.

    >>> settings_for(Target(1.0, 1e-5, Adjacency.ZERO_OUT), units=30_000, curvature=Curvature(1.0), clip=0.5)
    Settings(clip=0.5, learning_rate=1.0, batches_per_epoch=57, epochs=57)
    """
    validate.between(0, 1e6, strength=strength)
    learning_rate = 1 / (curvature.smoothness + strength) if learning_rate is None else learning_rate
    validate.positive(clip=clip, learning_rate=learning_rate)
    way_of_a_step = clip * learning_rate * curvature.smoothness
    steps = min(_MOST_STEPS, max(1.0, _SHARE_OF_NOISE * units * target.mu / way_of_a_step))
    if batch_size is not None:
        validate.count(at_most=units, batch_size=batch_size)
        batches = ceil(units / batch_size)
    elif epochs is not None:
        validate.count(epochs=epochs)
        batches = min(units, max(1, round(steps / epochs)))
    else:
        batches = min(units, ceil(sqrt(steps)))
    epochs = ceil(steps / batches) if epochs is None else epochs
    validate.count(epochs=epochs)
    return Settings(clip, learning_rate, batches, epochs)
