"""Default settings of a training, chosen from public facts only: the model, the task, the number of examples, epsilon.

They were tuned on public datasets; those of convex networks are less tuned. No private data is read here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dp_accounting.dp_event import GaussianDpEvent

from sordino.accounting import Adjacency, smallest
from sordino.convex.batch_choice import choose_batches, given_batches
from sordino.kernel.sampling import steps_per_epoch
from sordino.recipes.transformer_settings import is_transformer


@dataclass(frozen=True)
class TrainingSettings:
    """Settings that a recipe may leave open. `initial_seed` is the seed of the initial weights, which are public.

    The table below has the `learning_rate` of SGD for `_USUAL_EPSILON`. A smaller epsilon means more noise, and gets a
    smaller learning rate.
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
_TRANSFORMERS = TrainingSettings(batch_size=1024, epochs=10, learning_rate=1e-3, clip=1.0, optimizer="adam")


@dataclass(frozen=True)
class TaskFacts:
    """Public facts about the data on which defaults depend, besides its size.

    `rows_per_unit` is the declared largest number of rows of one user. The target is a class or a number.
    """

    rows_per_unit: int = 1
    is_regression: bool = False


@dataclass(frozen=True)
class _WeightNoise:
    """The most noise on a weight that a network bears at the end, for a target of classes or a number.

    With learning rate r, momentum m, clipping norm C and noise multiplier s, a weight collects normal noise of standard
    deviation r C s sqrt(T) / (B (1 - m)) in T steps. For n examples this is about r C T s1 / (n (1 - m)), where s1 is
    the multiplier of a single release of all rows. On small tables it decides how good the model is, so it sets the
    learning rate.
    """

    classes: float
    number: float

    def learning_rate(
        self, settings: TrainingSettings, task: TaskFacts, *, examples: int, single_release: float
    ) -> float:
        """The learning rate with this noise, at most that of the settings.

        Gradients of a user's rows are summed, so more rows of a user make the loss steeper and need shorter steps.
        """
        most = self.number if task.is_regression else self.classes
        steps = max(1.0, settings.epochs * examples / settings.batch_size)
        noise = settings.clip * steps * single_release / (examples * (1 - settings.momentum))
        return min(settings.learning_rate / task.rows_per_unit, most / noise)


# Chosen on Adult (samples of 300, 1,000 and 3,000 rows, and all), the tables that come with scikit-learn, and linear
# functions of users with 1 to 20 rows, at epsilon 1 to 8. With the average of the second half of the iterates, results
# change little between half and twice these values.
_WEIGHT_NOISE = {
    "linear": _WeightNoise(classes=0.5, number=0.3),
    "two-layer": _WeightNoise(classes=0.25, number=0.05),
    "mlp": _WeightNoise(classes=0.25, number=0.1),
    "cnn": _WeightNoise(classes=0.35, number=0.1),  # chosen on 2,000 digits of MNIST, reduced to 16 pixels
}
_OF_TABLES = replace(_OTHERS, averaging="tail:0.5")


@dataclass(frozen=True)
class _AdamWalk:
    """How far noise alone may move a weight in a training with Adam, for a target of classes or a number.

    Adam divides each coordinate of a gradient by its usual size. So a step of noise changes a weight by about the
    learning rate r, whatever the clip, the batch and the noise multiplier are, and T steps by about r sqrt(T).
    """

    classes: float
    number: float

    def learning_rate(self, steps: float, task: TaskFacts) -> float:
        return (self.number if task.is_regression else self.classes) / math.sqrt(steps)


# Chosen on held-out rows of digits, MNIST and the tables that come with scikit-learn (`python -m bench.adam`).
_ADAM_WALKS = {
    "linear": _AdamWalk(classes=0.6, number=0.25),
    "two-layer": _AdamWalk(classes=0.24, number=0.06),
    "mlp": _AdamWalk(classes=0.35, number=0.1),
}
_ADAM_WALK = _AdamWalk(classes=0.1, number=0.05)  # of other networks
_LARGEST_RATE_OF_ADAM = 0.1  # for trainings of few steps


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


_SHARE_OF_DELTA = 0.1  # of 1 / examples, where delta is not known
_MOST_STEPS = 10_000
_LONGEST_STEP = 1.9  # learning rate times smoothness; steps contract only below 2
_HIDDEN = {
    "gated-relu": _HiddenSettings(gates=128, clip=0.5, noise=0.11),
    "scatter-gated": _HiddenSettings(gates=2, clip=1.0, noise=0.17),
}


def defaults_for(
    model: str,
    *,
    examples: int,
    epsilon: float,
    delta: float | None = None,
    task: TaskFacts | None = None,
    given: Mapping[str, Any] | None = None,
    optimizer: str | None = None,
) -> TrainingSettings:
    """Default settings of DP-SGD for a model. The learning rate is chosen for the settings that are `given`.

    A small dataset gets smaller batches. The learning rate of networks for tables and small images is limited by the
    noise that a weight collects; for other networks, an epsilon below 3 gets a proportionally smaller one. The rate of
    `optimizer` "adam" is limited by the number of steps.

    >>> defaults_for("scatter-linear", examples=60_000, epsilon=3.0).batch_size
    8192
    >>> small, large = (defaults_for("linear", examples=n, epsilon=3.0, delta=1e-5) for n in (300, 30_000))
    >>> small.batch_size, round(small.learning_rate, 3), large.learning_rate
    (42, 0.076, 0.5)
    >>> round(defaults_for("linear", examples=300, epsilon=3.0, optimizer="adam").learning_rate, 3)
    0.05
    """
    if is_transformer(model) and optimizer != "sgd":
        return replace(_TRANSFORMERS, batch_size=_batch_size(_TRANSFORMERS, examples))
    limit = _WEIGHT_NOISE.get(model)
    settings = _SETTINGS.get(model, _OTHERS if limit is None else _OF_TABLES)
    settings = replace(settings, batch_size=_batch_size(settings, examples), optimizer=optimizer or settings.optimizer)
    if optimizer == "adam":
        settings = replace(settings, **(given or {}))
        steps = max(1.0, settings.epochs * examples / settings.batch_size)
        rate = _ADAM_WALKS.get(model, _ADAM_WALK).learning_rate(steps, task or TaskFacts())
        return replace(settings, learning_rate=min(_LARGEST_RATE_OF_ADAM, rate))
    if limit is None:
        return replace(settings, learning_rate=settings.learning_rate * min(1.0, epsilon / _USUAL_EPSILON))
    settings = replace(settings, **(given or {}))
    target = PrivacyTarget(epsilon, _SHARE_OF_DELTA / examples if delta is None else delta, Adjacency.ZERO_OUT)
    single_release = target.noise_multiplier
    rate = limit.learning_rate(settings, task or TaskFacts(), examples=examples, single_release=single_release)
    return replace(settings, learning_rate=rate)


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
