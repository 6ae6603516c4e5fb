"""Training of a convex ReLU network by NoisyCGD or DP-SGD, with settings from public facts.

Settings of a convex ReLU network that work, decided from what is public: the number of units, and what may be spent.

Let mu be what one Gaussian release of the whole target may reveal. In T steps of length eta, clipped at C, noise moves
the outputs by about C eta T / (n mu), whatever the batches are: for gradient descent on all n units by composition, for
batches that take turns by the hidden-state bound, for Poisson batches by subsampling. So the way C eta T that a model
may go is a share of n mu, and the batches are left to decide how long it takes to compute. A loss of smoothness M has
steps in units of 1 / M, and outputs too: those of the logistic loss are about four times as large.

The two ways to train a convex ReLU network: behind closed doors, or with every step counted.

Both take plain steps on a loss with a certificate. One shows only its end, and is worth what the hidden-state bound
says. The other may be watched at every step.
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

_SHARE_OF_NOISE = 0.2
_MOST_STEPS = 10_000


@dataclass(frozen=True)
class ConvexReLUSettings:
    """How long to train, in steps of which length, on batches of which size."""

    clip: float
    learning_rate: float
    batches_per_epoch: int
    epochs: int


@dataclass(frozen=True)
class FitTarget:
    """What one fit may cost, and between which neighbours."""

    epsilon: float
    delta: float
    adjacency: Adjacency

    @property
    def mu(self) -> float:
        """The Gaussian differential privacy that the target amounts to.

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
    """A value for whatever is None. More units, or more epsilon, are used for longer training.

    >>> settings_for(FitTarget(1.0, 1e-5, Adjacency.ZERO_OUT), units=30_000, curvature=Curvature(1.0), clip=0.5)
    ConvexReLUSettings(clip=0.5, learning_rate=1.0, batches_per_epoch=57, epochs=57)
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
    return ConvexReLUSettings(clip, learning_rate, batches, epochs)


@dataclass(frozen=True)
class ModelWithConstant:
    """Another model of the rows (x, 1), so that gates and maps have a bias.

    The inner model shortens (x, 1) to norm 1, as it does with every row: its bound is a fact of the model still. And
    no two rows become one by it, as x and 2 x would.

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
    """All that a training needs but the rows."""

    model: ConvexModel
    loss: CertifiedLoss
    outputs: int
    target: FitTarget
    settings: ConvexReLUSettings
    strength: float
    seed: int | None


Train = Callable[[TrainingDecisions, OneFit], tuple[nn.Module, Guarantee]]


def noisy_cgd(decided: TrainingDecisions, budget: OneFit) -> tuple[nn.Module, Guarantee]:
    """Fixed batches that take turns, of which only the last iterate is seen.

    Half an epoch without data follows, after which the last batch is hidden as well as the first.
    """
    target, settings = decided.target, decided.settings
    check_target(target.epsilon, target.delta)
    check_delta_for(budget.records.num_units, target.delta)
    if budget.records.rows_per_unit > 1:
        raise UsageError(
            f"noisy-cgd is proved for one row of a user, got rows_per_user {budget.records.rows_per_unit}: a clipped "
            "sum of gradients need not be the gradient of a convex loss; use method='dp-sgd'."
        )
    plan = NoisyCGD(
        Cyclic(settings.batches_per_epoch, settings.epochs, target.adjacency),
        decided.model,
        clip=settings.clip,
        noise_multiplier=1.0,
        learning_rate=settings.learning_rate,
        loss=decided.loss,
        strength=decided.strength,
        trailing_steps=settings.batches_per_epoch // 2,
    ).calibrated(epsilon=target.epsilon, delta=target.delta)
    fitted = fit_hidden_state(
        plan, budget, outputs=decided.outputs, delta=target.delta, seed=decided.seed, progress=False
    )
    return fitted.model, fitted.guarantee


def dp_sgd(decided: TrainingDecisions, budget: OneFit) -> tuple[nn.Module, Guarantee]:
    """Poisson batches of the same expected size, as many of them, and plain steps on each."""
    target, settings, units = decided.target, decided.settings, budget.records.num_units
    rate, steps = 1 / settings.batches_per_epoch, settings.batches_per_epoch * settings.epochs
    fitted = fit(
        decided.model.build(budget.records.template(1).inputs[0].numel(), decided.outputs),
        budget,
        epsilon=target.epsilon,
        delta=target.delta,
        batch_size=-(-units // settings.batches_per_epoch),
        sampler=Poisson(rate, steps, target.adjacency),
        loss=decided.loss,
        clip=settings.clip,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=settings.learning_rate, weight_decay=decided.strength),
        seed=decided.seed,
        progress=False,
    )
    return fitted.model, fitted.guarantee


METHODS: dict[str, Train] = {"noisy-cgd": noisy_cgd, "dp-sgd": dp_sgd}


def method_named(method: object) -> Train:
    """One of the two, or a refusal that names them.

    >>> method_named("sgd")
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: method must be 'noisy-cgd' or 'dp-sgd', got 'sgd'.
    """
    validate.instance(str, method=method)
    if method not in METHODS:
        raise UsageError(f"method must be {' or '.join(map(repr, METHODS))}, got {validate.option(method)}.")
    return METHODS[str(method)]
