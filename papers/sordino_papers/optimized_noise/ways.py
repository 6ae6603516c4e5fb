"""How noise is made: the ways that the table compares. Each turns settings and an epsilon into a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from sordino.encodings.matched import Matched
from sordino.encodings.matched_bought import MatchedBought
from sordino.encodings.public_gradients import PublicGradients
from sordino.kernel.calibration import calibrate
from sordino.kernel.clipping import ClipByNorm
from sordino.kernel.contribution import LossGradient
from sordino.kernel.encoding import Encoding, Unchanged
from sordino.kernel.noise import Gaussian, Noise
from sordino.kernel.step import Plan
from sordino.optimized_noise.costs import AbsoluteCost, Cost
from sordino.optimized_noise.learnt import FromPublicRows, FromReleases
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Source
from sordino.training.loop import measured
from sordino_papers.harness.ablations import Comparison, clipped_sgd, unpaid_weights_sgd
from sordino_papers.harness.carried_out import carried_out
from sordino_papers.harness.entry import Measured
from sordino_papers.harness.rows import Rows
from sordino_papers.optimized_noise.by_dimension import FAMILIES
from sordino_papers.optimized_noise.heads import Head
from sordino_papers.optimized_noise.moments_accountant import noise_of_2016
from sordino_papers.optimized_noise.settings import DELTA, Settings


class Way(ABC):
    """A way to make noise that keeps a promise."""

    @abstractmethod
    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        """What is released, with as much noise as epsilon asks for. `public` are inputs of other data."""

    def train(self, head: Head, rows: Rows, settings: Settings, epsilon: float, seed: int) -> Measured:
        model = head.build(rows, seed)
        plan = self.plan(settings, epsilon, model, head.public_inputs(rows))
        divisor = settings.rate * len(rows)
        accuracy = carried_out(plan, model, rows, optimizer=settings.optimizer, divisor=divisor, seed=seed)
        guarantee, release = plan.guarantee(delta=DELTA), _event(plan)
        more = {
            "epsilon": guarantee.epsilon,
            "delta": DELTA,
            "accountant": guarantee.accountant,
            "noise_multiplier": release.noise_multiplier,
        }
        return Measured(100 * accuracy, more)


@dataclass(frozen=True)
class ByPld(Way):
    """Gaussian noise, as little as the accountant of today asks for."""

    kind: ClassVar[str] = "gaussian"

    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return calibrate(_plan(settings, Gaussian(1.0)), epsilon=epsilon, delta=DELTA)


@dataclass(frozen=True)
class By2016(Way):
    """Gaussian noise, as much as the accountant of Abadi et al. (2016) asked for."""

    kind: ClassVar[str] = "gaussian-2016"

    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return _plan(settings, Gaussian(noise_of_2016(settings.sampler, epsilon=epsilon, delta=DELTA)))


@dataclass(frozen=True)
class Pure(Way):
    """Noise of a pure family, whose weights come from past releases unless said."""

    kind: ClassVar[str] = "pure"
    family: str = "blocks"
    weights: Source = field(default_factory=FromReleases)

    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        noise = OptimizedNoise(1.0, self.weights, fit=FAMILIES[self.family])
        return calibrate(_plan(settings, noise), epsilon=epsilon, delta=DELTA)


@dataclass(frozen=True)
class MatchedScale(Way):
    """Gaussian noise behind a clip of the same shape, which is learnt from past releases."""

    kind: ClassVar[str] = "matched"
    cost: Cost = field(default_factory=AbsoluteCost)

    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return _scaled(settings, Matched(FromReleases(), self.cost), epsilon)


@dataclass(frozen=True)
class MatchedToPublic(Way):
    """The same, with a shape from gradients of public pictures under random labels, every `every` steps."""

    kind: ClassVar[str] = "matched-public"
    every: int = 10
    cost: Cost = field(default_factory=AbsoluteCost)

    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        anchors = PublicGradients(model, public, classes=_CLASSES)
        return _scaled(settings, Matched(FromPublicRows(anchors, self.every), self.cost), epsilon)


@dataclass(frozen=True)
class MatchedAndBought(Way):
    """The same, with a shape that is released beside the gradient, and paid for in noise."""

    kind: ClassVar[str] = "matched-bought"
    share: float = 0.25
    cost: Cost = field(default_factory=AbsoluteCost)

    def plan(self, settings: Settings, epsilon: float, model: nn.Module, public: Tensor) -> Plan:
        return _scaled(settings, MatchedBought(self.share, cost=self.cost), epsilon)


@dataclass(frozen=True)
class NoPrivacy:
    """The same steps without clip and noise."""

    kind: ClassVar[str] = "no-privacy"

    def train(self, head: Head, rows: Rows, settings: Settings, seed: int) -> Measured:
        model, compared = head.build(rows, seed), _comparison(rows, settings, seed)
        optimizer = settings.optimizer(model.parameters())
        result = clipped_sgd(model, rows.data, optimizer, compared, clip=ClipByNorm(_NO_CLIP))
        return Measured(100 * measured(result.model, rows.test)["accuracy"])


@dataclass(frozen=True)
class Unpaid:
    """Optimised noise as it was first proposed, with weights from all private rows: noise for `epsilon`, no promise."""

    kind: ClassVar[str] = "unpaid"
    epsilon: float

    def train(self, head: Head, rows: Rows, settings: Settings, seed: int) -> Measured:
        model, compared = head.build(rows, seed), _comparison(rows, settings, seed)
        plan = Pure().plan(settings, self.epsilon, model, head.public_inputs(rows))
        result = unpaid_weights_sgd(
            model,
            rows.data,
            settings.optimizer(model.parameters()),
            compared,
            clip=plan.clip,
            noise=OptimizedNoise(_event(plan).noise_multiplier),
        )
        return Measured(100 * measured(result.model, rows.test)["accuracy"])


_NO_CLIP = 1e9
_CLASSES = 10


def _comparison(rows: Rows, settings: Settings, seed: int) -> Comparison:
    return Comparison(settings.sampler, divisor=settings.rate * len(rows), seed=seed)


def _plan(settings: Settings, noise: Noise, encoding: Encoding | None = None) -> Plan:
    gradient, clip = LossGradient(F.cross_entropy), ClipByNorm(settings.clip)
    return Plan(settings.sampler, gradient, clip, noise, encoding or Unchanged())


def _scaled(settings: Settings, encoding: Encoding, epsilon: float) -> Plan:
    return calibrate(_plan(settings, Gaussian(1.0), encoding), epsilon=epsilon, delta=DELTA)


def _event(plan: Plan) -> Any:
    """Whatever the noise is, its event has a multiplier."""
    return plan.noise.event
