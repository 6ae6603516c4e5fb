"""Training of a convex ReLU network by NoisyCGD or DP-SGD, with default settings from public facts.

Both methods take plain gradient steps on a certified loss. NoisyCGD releases the last iterate only, with the
hidden-state bound. DP-SGD may be observed at every step.

The defaults depend on the number of units n and on the target (epsilon, delta) only. Let mu be the Gaussian-DP
parameter of the target. In T steps of learning rate eta, clipped at C, noise moves the outputs by about
C eta T / (n mu) for any batch size: by composition for full batches, by the hidden-state bound for cyclic batches, by
subsampling for Poisson batches. So the total path length C eta T is set to a fraction of n mu, and the batch size only
determines the computation time. For a loss of smoothness M, steps and outputs scale with 1 / M: those of the logistic
loss are about four times as large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt

import torch
import torch.nn.functional as F
from dp_accounting.dp_event import GaussianDpEvent
from torch import Tensor, nn

from sordino._input import validate
from sordino.accounting import Adjacency, Guarantee, smallest
from sordino.convex import GatedReLU, NoisyCGD, fit_hidden_state
from sordino.convex.losses import CertifiedLoss, Curvature
from sordino.convex.model import ConvexModel
from sordino.errors import UsageError
from sordino.kernel.calibration import check_delta_for, check_target
from sordino.kernel.sampling import Cyclic, Poisson
from sordino.sklearn.estimator import OneFit
from sordino.training.fit import fit

_NOISE_FRACTION = 0.2
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class ConvexReLUSettings:
    """Clip norm, learning rate, number of batches and number of epochs of a training."""

    clip: float
    learning_rate: float
    batches_per_epoch: int
    epochs: int


@dataclass(frozen=True)
class FitTarget:
    """The target (epsilon, delta) of one fit, and its adjacency."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter that corresponds to the target.

        >>> round(FitTarget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT).mu, 3)
        0.268
        """
        return 1 / smallest(GaussianDpEvent, self.adjacency, epsilon=self.epsilon, delta=self.delta)


def settings_for(
    target: FitTarget,
    units: int,
    *,
    curvature: Curvature,
    clip: float,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    strength: float = 0.0,
) -> ConvexReLUSettings:
    """Chooses the settings that are None. More units or a larger epsilon give a longer training.

    >>> settings_for(FitTarget(1.0, 1e-5, Adjacency.ZERO_OUT), units=30_000, curvature=Curvature(1.0), clip=0.5)
    ConvexReLUSettings(clip=0.5, learning_rate=1.0, batches_per_epoch=57, epochs=57)
    """
    validate.between(0, 1e6, strength=strength)
    learning_rate = 1 / (curvature.smoothness + strength) if learning_rate is None else learning_rate
    validate.positive(clip=clip, learning_rate=learning_rate)
    step_length = clip * learning_rate * curvature.smoothness
    steps = min(_MOST_STEPS, max(1.0, _NOISE_FRACTION * units * target.mu / step_length))
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
    return ConvexReLUSettings(clip, learning_rate, batches, epochs)


@dataclass(frozen=True)
class ModelWithConstant:
    """Applies a model to rows (x, 1), so that gates and maps have a bias.

    The inner model scales (x, 1) to norm at most 1, like every row, so its feature bound stays valid. Different rows
    remain different, unlike x and 2 x without the constant.

    >>> model = ModelWithConstant(GatedReLU(gates=4)).build(inputs=2, outputs=1)
    >>> model(torch.zeros(5, 2)).shape, sum(p.numel() for p in model.parameters())
    (torch.Size([5, 1]), 12)
    """

    model: ConvexModel

    @property
    def feature_bound(self) -> float:
        return self.model.feature_bound

    def build(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(_AppendOne(), self.model.build(inputs + 1, outputs))


class _AppendOne(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0)


def network(gates: int) -> ConvexModel:
    """The gated ReLU network with a bias."""
    return ModelWithConstant(GatedReLU(gates))


@dataclass(frozen=True)
class TrainingDecisions:
    """All inputs of a training except the rows."""

    model: ConvexModel
    loss: CertifiedLoss
    outputs: int
    target: FitTarget
    settings: ConvexReLUSettings
    strength: float
    seed: int | None


Train = Callable[[TrainingDecisions, OneFit], tuple[nn.Module, Guarantee]]


def noisy_cgd(decisions: TrainingDecisions, budget: OneFit) -> tuple[nn.Module, Guarantee]:
    """Trains with NoisyCGD on fixed cyclic batches and releases the last iterate.

    Half an epoch of steps without data follows, so that the last batch is protected as well as the first.
    """
    target, settings = decisions.target, decisions.settings
    check_target(target.epsilon, target.delta)
    check_delta_for(budget.records.num_units, target.delta)
    if budget.records.rows_per_unit > 1:
        raise UsageError(
            f"noisy-cgd needs one row per user, got rows_per_user {budget.records.rows_per_unit}: a clipped sum of "
            "gradients need not be the gradient of a convex loss; use method='dp-sgd'."
        )
    plan = NoisyCGD(
        Cyclic(settings.batches_per_epoch, settings.epochs, target.adjacency),
        decisions.model,
        clip=settings.clip,
        noise_multiplier=1.0,
        learning_rate=settings.learning_rate,
        loss=decisions.loss,
        strength=decisions.strength,
        trailing_steps=settings.batches_per_epoch // 2,
    ).calibrated(epsilon=target.epsilon, delta=target.delta)
    fitted = fit_hidden_state(
        plan, budget, outputs=decisions.outputs, delta=target.delta, seed=decisions.seed, progress=False
    )
    return fitted.model, fitted.guarantee


def dp_sgd(decisions: TrainingDecisions, budget: OneFit) -> tuple[nn.Module, Guarantee]:
    """Trains with DP-SGD: as many Poisson batches of the same expected size, with plain gradient steps."""
    target, settings, units = decisions.target, decisions.settings, budget.records.num_units
    rate, steps = 1 / settings.batches_per_epoch, settings.batches_per_epoch * settings.epochs
    fitted = fit(
        decisions.model.build(budget.records.template(1).inputs[0].numel(), decisions.outputs),
        budget,
        epsilon=target.epsilon,
        delta=target.delta,
        batch_size=-(-units // settings.batches_per_epoch),
        sampler=Poisson(rate, steps, target.adjacency),
        loss=decisions.loss,
        clip=settings.clip,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=settings.learning_rate, weight_decay=decisions.strength),
        seed=decisions.seed,
        progress=False,
    )
    return fitted.model, fitted.guarantee


METHODS: dict[str, Train] = {"noisy-cgd": noisy_cgd, "dp-sgd": dp_sgd}


def method_named(method: object) -> Train:
    """Returns the training function of a method, or raises an error that lists the methods.

    >>> method_named("sgd")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: method must be 'noisy-cgd' or 'dp-sgd', got 'sgd'.
    """
    validate.instance(str, method=method)
    if method not in METHODS:
        raise UsageError(f"method must be {' or '.join(map(repr, METHODS))}, got {validate.option(method)}.")
    return METHODS[str(method)]
