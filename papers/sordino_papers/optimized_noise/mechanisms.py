"""Noise mechanisms that the table compares. Each turns settings and an epsilon into a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino.accounting import Adjacency
from sordino.encodings.matched import Matched, MatchedBought
from sordino.encodings.public_gradients import PublicGradients
from sordino.kernel.calibration import calibrate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.sampling import Poisson
from sordino.kernel.step import Plan
from sordino.optimized_noise.costs import AbsoluteCost, Cost
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import FromPublicRows, FromReleases, Source
from sordino.training.loop import measured
from sordino_papers.harness.ablations import AblationSettings, clipped_sgd, unpaid_weights_sgd
from sordino_papers.harness.entry import Measurement
from sordino_papers.harness.rows import ExperimentRows
from sordino_papers.harness.training import train_and_measure
from sordino_papers.optimized_noise.by_dimension import FAMILIES
from sordino_papers.optimized_noise.heads import Head
from sordino_papers.optimized_noise.moments_accountant import noise_of_2016

ADJACENCY = Adjacency.ZERO_OUT
DELTA = 1e-5


@dataclass(frozen=True)
class StepSettings:
    """SGD with momentum on Poisson batches, in which each row joins with probability `rate`."""

    steps: int
    rate: float
    learning_rate: float
    clip: float
    momentum: float = 0.5

    @property
    def sampler(self) -> Poisson:
        return Poisson(self.rate, self.steps, ADJACENCY)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)


class NoiseMechanism(ABC):
    """A noise mechanism with a guarantee."""

    @abstractmethod
    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        """A plan with the noise that epsilon requires. `public` are inputs from another dataset."""

    def train(self, head: Head, rows: ExperimentRows, settings: StepSettings, epsilon: float, seed: int) -> Measurement:
        model = head.build(rows, seed)
        plan = self.plan(settings, epsilon, model, head.public_inputs(rows))
        divisor = settings.rate * len(rows)
        accuracy = train_and_measure(plan, model, rows, optimizer=settings.optimizer, divisor=divisor, seed=seed)
        guarantee, release = plan.guarantee(delta=DELTA), _event(plan)
        more = {
            "epsilon": guarantee.epsilon,
            "delta": DELTA,
            "accountant": guarantee.accountant,
            "noise_multiplier": release.noise_multiplier,
        }
        return Measurement(100 * accuracy, more)


@dataclass(frozen=True)
class GaussianByPld(NoiseMechanism):
    """Gaussian noise, calibrated with the current accountant."""

    kind: ClassVar[str] = "gaussian"

    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return calibrate(_plan(settings, Gaussian(1.0)), epsilon=epsilon, delta=DELTA)


@dataclass(frozen=True)
class GaussianBy2016(NoiseMechanism):
    """Gaussian noise, calibrated with the accountant of Abadi et al. (2016)."""

    kind: ClassVar[str] = "gaussian-2016"

    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return _plan(settings, Gaussian(noise_of_2016(settings.sampler, epsilon=epsilon, delta=DELTA)))


@dataclass(frozen=True)
class PureNoise(NoiseMechanism):
    """Noise of a pure family. Its weights come from past releases by default."""

    kind: ClassVar[str] = "pure"
    family: str = "blocks"
    weights: Source = field(default_factory=FromReleases)

    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        noise = OptimizedNoise(1.0, self.weights, fit=FAMILIES[self.family])
        return calibrate(_plan(settings, noise), epsilon=epsilon, delta=DELTA)


@dataclass(frozen=True)
class MatchedGaussian(NoiseMechanism):
    """Gaussian noise after a clip of matching shape, which is learned from past releases."""

    kind: ClassVar[str] = "matched"
    cost: Cost = field(default_factory=AbsoluteCost)

    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return _scaled(settings, Matched(FromReleases(), self.cost), epsilon)


@dataclass(frozen=True)
class MatchedToPublicRows(NoiseMechanism):
    """A matched Gaussian whose shape comes from gradients of public images with random labels, every `every` steps."""

    kind: ClassVar[str] = "matched-public"
    every: int = 10
    cost: Cost = field(default_factory=AbsoluteCost)

    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        anchors = PublicGradients(model, public, classes=_CLASSES)
        return _scaled(settings, Matched(FromPublicRows(anchors, self.every), self.cost), epsilon)


@dataclass(frozen=True)
class MatchedWithPaidShape(NoiseMechanism):
    """A matched Gaussian whose shape is released with the gradient, at the cost of more noise."""

    kind: ClassVar[str] = "matched-bought"
    share: float = 0.25
    cost: Cost = field(default_factory=AbsoluteCost)

    def plan(self, settings: StepSettings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return _scaled(settings, MatchedBought(self.share, cost=self.cost), epsilon)


@dataclass(frozen=True)
class NoPrivacy:
    """Training without clip and noise."""

    kind: ClassVar[str] = "no-privacy"

    def train(self, head: Head, rows: ExperimentRows, settings: StepSettings, seed: int) -> Measurement:
        model, compared = head.build(rows, seed), _comparison(rows, settings, seed)
        optimizer = settings.optimizer(model.parameters())
        result = clipped_sgd(model, rows.data, optimizer, compared, clip=ClipByNorm(_NO_CLIP))
        return Measurement(100 * measured(result.model, rows.test)["accuracy"])


@dataclass(frozen=True)
class UnpaidWeights:
    """Optimized noise as first proposed, with weights from all private rows: noise for `epsilon`, no guarantee."""

    kind: ClassVar[str] = "unpaid"
    epsilon: float

    def train(self, head: Head, rows: ExperimentRows, settings: StepSettings, seed: int) -> Measurement:
        model, compared = head.build(rows, seed), _comparison(rows, settings, seed)
        plan = PureNoise().plan(settings, self.epsilon, model, head.public_inputs(rows))
        result = unpaid_weights_sgd(
            model,
            rows.data,
            settings.optimizer(model.parameters()),
            compared,
            clip=plan.clip,
            noise=OptimizedNoise(_event(plan).noise_multiplier),
        )
        return Measurement(100 * measured(result.model, rows.test)["accuracy"])


_NO_CLIP = 1e9
_CLASSES = 10


def _comparison(rows: ExperimentRows, settings: StepSettings, seed: int) -> AblationSettings:
    return AblationSettings(settings.sampler, divisor=settings.rate * len(rows), seed=seed)


def _plan(settings: StepSettings, noise: Noise, encoding: Encoding | None = None) -> Plan:
    gradient, clip = LossGradient(F.cross_entropy), ClipByNorm(settings.clip)
    return Plan(settings.sampler, gradient, clip, noise, encoding or Unchanged())


def _scaled(settings: StepSettings, encoding: Encoding, epsilon: float) -> Plan:
    return calibrate(_plan(settings, Gaussian(1.0), encoding), epsilon=epsilon, delta=DELTA)


def _event(plan: Plan) -> Any:
    """The event of the noise: every noise here has an event with a multiplier."""
    return plan.noise.event
