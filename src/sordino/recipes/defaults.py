"""Settings that work, decided from public facts only: the model, the number of examples and epsilon.

They were found on public data sets; those of convex networks are a start. Nobody's data is looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dp_accounting.dp_event import GaussianDpEvent

from sordino.accounting import Adjacency, smallest
from sordino.convex.batch_choice import choose_batches, given_batches
from sordino.kernel.sampling import steps_per_epoch


@dataclass(frozen=True)
class TrainingSettings:
    """What a recipe may leave open. `initial_seed` is that of the first weights, which are public.

    The table below has the `learning_rate` for `_USUAL_EPSILON`: more noise needs shorter steps.
    """

    batch_size: int
    epochs: float
    learning_rate: float
    clip: float
    optimizer: str = "sgd"
    momentum: float = 0.9
    schedule: str = "constant"
    averaging: str = "none"
    gates: int | None = None
    trailing_steps: int | None = None
    initial_seed: int = 0


_USUAL_EPSILON = 3.0
_LARGEST_SHARE = 1 / 7  # of the examples in a batch: more gains nothing

_SETTINGS = {
    "scatter-linear": TrainingSettings(batch_size=8192, epochs=60, learning_rate=12.0, clip=0.1),
    # What the searches of `sordino reproduce sparsification` ended with, without masks.
    "h-cnn-s": TrainingSettings(
        batch_size=2048, epochs=48, learning_rate=4.0, clip=0.5, momentum=0.5, averaging="ema:0.99"
    ),
    "h-cnn": TrainingSettings(batch_size=8192, epochs=60, learning_rate=8.0, clip=0.1, averaging="ema:0.99"),
    "dp-cnn-s": TrainingSettings(
        batch_size=2048, epochs=48, learning_rate=4.0, clip=0.5, momentum=0.5, averaging="ema:0.99"
    ),
    "dp-cnn": TrainingSettings(
        batch_size=1000, epochs=40, learning_rate=1.0, clip=1.0, momentum=0.0, averaging="ema:0.99"
    ),
    "lenet": TrainingSettings(batch_size=1024, epochs=40, learning_rate=2.0, clip=0.1),
    "gated-relu": TrainingSettings(batch_size=1024, epochs=20, learning_rate=4.0, clip=0.5, gates=64),
    "scatter-gated": TrainingSettings(batch_size=2048, epochs=30, learning_rate=8.0, clip=0.2, gates=16),
}
_OTHERS = TrainingSettings(batch_size=1024, epochs=20, learning_rate=0.5, clip=1.0)


# In hiding: the `learning_rate` is for no weight decay, where steps contract below 2.
@dataclass(frozen=True)
class _Hidden:
    """What suits a convex network. `noise` is what an output may get by the end of the run, on a scale of 1."""

    gates: int
    clip: float
    noise: float


@dataclass(frozen=True)
class PrivacyTarget:
    """What is to be promised."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    @property
    def noise_multiplier(self) -> float:
        """Of one release of everything."""
        return smallest(GaussianDpEvent, self.adjacency, epsilon=self.epsilon, delta=self.delta)


_MOST_STEPS = 10_000
_LONGEST_STEP = 1.9  # of 2, at which steps would not contract any more
_HIDDEN = {
    "gated-relu": _Hidden(gates=128, clip=0.5, noise=0.11),
    "scatter-gated": _Hidden(gates=2, clip=1.0, noise=0.17),
}


def defaults_for(model: str, *, examples: int, epsilon: float) -> TrainingSettings:
    """A value for everything that a recipe may leave open.

    A small data set gets smaller batches. Below the usual epsilon the noise grows as epsilon falls, and steps shrink.

    >>> defaults_for("scatter-linear", examples=60_000, epsilon=3.0).batch_size
    8192
    >>> defaults_for("linear", examples=1_400, epsilon=3.0).batch_size
    200
    """
    settings = _SETTINGS.get(model, _OTHERS)
    learning_rate = settings.learning_rate * min(1.0, epsilon / _USUAL_EPSILON)
    return replace(settings, batch_size=_batch_size(settings, examples), learning_rate=learning_rate)


def hidden_defaults_for(
    model: str, *, examples: int, target: PrivacyTarget, weight_decay: float, batch_size: int | None = None
) -> TrainingSettings:
    """The same for training in hiding. Steps are as long as contraction allows, whatever the noise.

    There are as many as the noise allows: T steps of length eta at a noise multiplier of m for one full release leave
    noise of about m C eta T / n on an output. How many batches take turns is the accountant's choice; with a
    `batch_size`, how long.

    >>> target = PrivacyTarget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
    >>> settings = hidden_defaults_for("gated-relu", examples=60_000, target=target, weight_decay=0.0)
    >>> settings.batch_size, settings.epochs, settings.trailing_steps, settings.learning_rate
    (952, 30, 16, 1.9)
    """
    suits = _HIDDEN[model]
    steps = round(suits.noise * examples / (target.noise_multiplier * _LONGEST_STEP * suits.clip))
    steps = max(1, min(_MOST_STEPS, steps))
    if batch_size is None:
        choice = choose_batches(steps, examples=examples)
    else:
        choice = given_batches(steps_per_epoch(examples, batch_size), steps)
    return TrainingSettings(
        batch_size=max(1, examples // choice.batches_per_epoch),
        epochs=choice.epochs,
        learning_rate=_LONGEST_STEP / (1 + weight_decay),
        clip=suits.clip,
        momentum=0.0,
        gates=suits.gates,
        trailing_steps=choice.trailing_steps,
    )


def _batch_size(settings: TrainingSettings, examples: int) -> int:
    return max(1, min(settings.batch_size, int(examples * _LARGEST_SHARE)))
