"""Default settings of a training, chosen from public facts only: the model, the number of examples and epsilon.

They were tuned on public datasets; those of convex networks are less tuned. No private data is read here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dp_accounting.dp_event import GaussianDpEvent

from sordino.accounting import Adjacency, smallest
from sordino.convex.batch_choice import choose_batches, given_batches
from sordino.kernel.sampling import steps_per_epoch


@dataclass(frozen=True)
class TrainingSettings:
    """Settings that a recipe may leave open. `initial_seed` is the seed of the initial weights, which are public.

    The table below has the `learning_rate` for `_USUAL_EPSILON`. A smaller epsilon means more noise, and gets a smaller
    learning rate.
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
_LARGEST_BATCH = 1 / 7  # largest batch as a fraction of all examples; larger ones gained nothing

_SETTINGS = {
    "scatter-linear": TrainingSettings(batch_size=8192, epochs=60, learning_rate=12.0, clip=0.1),
    # Results of the searches of `sordino reproduce sparsification`, without masks.
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


@dataclass(frozen=True)
class _HiddenSettings:
    """Settings of hidden-state training. `noise` is the noise on an output at the end of the run, for targets of 1."""

    gates: int
    clip: float
    noise: float


@dataclass(frozen=True)
class PrivacyTarget:
    """The guarantee to reach: epsilon and delta under an adjacency."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    @property
    def noise_multiplier(self) -> float:
        """Noise multiplier with which a single Gaussian release of all rows would reach the target."""
        return smallest(GaussianDpEvent, self.adjacency, epsilon=self.epsilon, delta=self.delta)


_MOST_STEPS = 10_000
_LONGEST_STEP = 1.9  # learning rate times smoothness; steps contract only below 2
_HIDDEN = {
    "gated-relu": _HiddenSettings(gates=128, clip=0.5, noise=0.11),
    "scatter-gated": _HiddenSettings(gates=2, clip=1.0, noise=0.17),
}


def defaults_for(model: str, *, examples: int, epsilon: float) -> TrainingSettings:
    """Default settings of DP-SGD for a model.

    A small dataset gets smaller batches. An epsilon below 3 gets a proportionally smaller learning rate.

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
    """Default settings of hidden-state training (NoisyCGD) for a convex model.

    The learning rate eta is the largest one with which steps still contract, whatever the noise. The number of steps T
    follows from the noise: with noise multiplier m for one full release, an output has noise of about m C eta T / n.
    The accountant chooses the number of batches per epoch, or with a given `batch_size` the number of epochs.

    >>> target = PrivacyTarget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
    >>> settings = hidden_defaults_for("gated-relu", examples=60_000, target=target, weight_decay=0.0)
    >>> settings.batch_size, settings.epochs, settings.trailing_steps, settings.learning_rate
    (952, 30, 16, 1.9)
    """
    hidden = _HIDDEN[model]
    steps = round(hidden.noise * examples / (target.noise_multiplier * _LONGEST_STEP * hidden.clip))
    steps = max(1, min(_MOST_STEPS, steps))
    if batch_size is None:
        choice = choose_batches(steps, examples=examples)
    else:
        choice = given_batches(steps_per_epoch(examples, batch_size), steps)
    return TrainingSettings(
        batch_size=max(1, examples // choice.batches_per_epoch),
        epochs=choice.epochs,
        learning_rate=_LONGEST_STEP / (1 + weight_decay),
        clip=hidden.clip,
        momentum=0.0,
        gates=hidden.gates,
        trailing_steps=choice.trailing_steps,
    )


def _batch_size(settings: TrainingSettings, examples: int) -> int:
    return max(1, min(settings.batch_size, int(examples * _LARGEST_BATCH)))
