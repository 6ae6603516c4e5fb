"""The default accountant: privacy loss distributions, composed numerically and rounded to the safe side."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from dp_accounting.dp_event import (
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from scipy.stats import binom

from sordino.accounting.allocation_pair import AllocatedGaussian
from sordino.accounting.binomial import MOST_EXACT_STEPS, Binomial
from sordino.accounting.curves import deltas_of
from sordino.accounting.direction import Direction
from sordino.accounting.dominating import EitherPair, FixedSizeBatches, GaussianMixtures, Laplaces, Pair, Reals
from sordino.accounting.events import PureDpEvent, RandomAllocationDpEvent, named
from sordino.accounting.randomized_response import RandomizedResponse
from sordino.accounting.visible import REPLACE_ONE, Sight
from sordino.errors import UnsupportedEvent

SMALLEST_MULTIPLIER = 0.05


@dataclass(frozen=True)
class PldCurve:
    """The curve of a composition of sights, each run so many times.

    >>> from sordino.accounting.visible import Sight
    >>> curve = PldCurve.of([(Sight(PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(1.1))), 14_062)])
    >>> round(curve.epsilon(1e-5), 2)
    2.38
    """

    sights: tuple[tuple[Sight, int], ...]
    name: str = "pld"

    @classmethod
    def of(cls, sights: Iterable[tuple[Sight, int]], name: str = "pld") -> PldCurve:
        return cls(tuple(sights), name)

    def epsilon(self, delta: float) -> float:
        return self._composed.epsilon(delta) if self._answers else math.inf

    def delta(self, epsilon: float) -> float:
        return self._composed.delta(epsilon) if self._answers else 1.0

    def deltas(self, epsilons: Reals) -> Reals:
        return self._composed.deltas(epsilons) if self._answers else np.ones(len(epsilons))

    @cached_property
    def _answers(self) -> bool:
        return all(answers(sight) for sight, _ in self.sights)

    @cached_property
    def _composed(self) -> PairsCurve:
        pairs = tuple(dominating_pairs(sight) for sight, _ in self.sights)
        return PairsCurve(pairs, tuple(count for _, count in self.sights), self.name)


@dataclass(frozen=True)
class PairsCurve:
    """The curve of a composition of worst-case pairs, each in both directions, and run so many times."""

    pairs: tuple[tuple[Pair, Pair], ...]
    counts: tuple[int, ...]
    name: str

    def epsilon(self, delta: float) -> float:
        return max(_epsilon(direction, delta) for direction in self._directions)

    def delta(self, epsilon: float) -> float:
        return max(direction.delta(epsilon) for direction in self._directions)

    def deltas(self, epsilons: Reals) -> Reals:
        return np.asarray(np.max([deltas_of(direction, epsilons) for direction in self._directions], axis=0))

    @cached_property
    def _directions(self) -> list[Direction | Binomial]:
        """From the data with the unit to the data without it, and back; only one of them if they are the same."""
        return [_direction(each, self.counts) for each in dict.fromkeys(zip(*self.pairs, strict=True))]


def _direction(pairs: tuple[Pair, ...], counts: tuple[int, ...]) -> Direction | Binomial:
    match pairs, counts:
        case [RandomizedResponse() as response], [steps] if steps <= MOST_EXACT_STEPS:
            return Binomial(response, steps)
        case _:
            return Direction(pairs, counts)


@lru_cache(maxsize=4096)  # small trainings alike, as in a cross-validation, ask for each of their steps again and again
def _epsilon(direction: Direction | Binomial, delta: float) -> float:
    return direction.epsilon(delta)


def dominating_pairs(sight: Sight) -> tuple[Pair, Pair]:
    """The worst-case pairs of one mechanism: with the unit against without it, and the other way round.

    Zhu, Dong and Wang (2022) for Poisson sampling and for batches of a fixed size, Ganesh (2025) for truncated Poisson
    sampling, `allocation_pair` for
    one epoch of balls in bins, `randomized_response` for pure noise.
    """
    match sight.event:
        case GaussianDpEvent(noise_multiplier=std):
            return _mixtures(std, ((1.0, 1.0),))
        case PoissonSampledDpEvent(sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=std)):
            present = ((1 - rate, 0.0), (rate, 1.0))
            return _replaced(std, present) if sight.relation is REPLACE_ONE else _mixtures(std, present)
        case MixtureOfGaussiansDpEvent(standard_deviation=std, sensitivities=means, sampling_probs=weights):
            return _mixtures(std, tuple(zip(weights, means, strict=True)))
        case TruncatedSubsampledGaussianDpEvent():
            return _truncated(sight.event, sight)
        case SampledWithoutReplacementDpEvent(event=GaussianDpEvent(noise_multiplier=std)):
            pair = FixedSizeBatches(std, sight.event.sample_size / sight.event.source_dataset_size)
            return pair, pair
        case RandomAllocationDpEvent(noise_multiplier=multiplier, bins=bins):
            joined = AllocatedGaussian(multiplier, bins, present_above=True)
            return joined, replace(joined, present_above=False)
        case LaplaceDpEvent(noise_multiplier=scale):
            return Laplaces(scale, 1.0, present_above=True), Laplaces(scale, 1.0, present_above=False)
        case PoissonSampledDpEvent(sampling_probability=rate, event=LaplaceDpEvent(noise_multiplier=scale)):
            return Laplaces(scale, rate, present_above=True), Laplaces(scale, rate, present_above=False)
        case PureDpEvent(noise_multiplier=multiplier):
            response = RandomizedResponse(1 / multiplier, 1.0, present_above=True)
            return response, response
        case PoissonSampledDpEvent(sampling_probability=rate, event=PureDpEvent(noise_multiplier=multiplier)):
            there = RandomizedResponse(1 / multiplier, rate, present_above=True)
            return there, replace(there, present_above=False)
        case _:
            raise UnsupportedEvent(f"privacy loss distributions do not cover {named(sight.event)}.")


def answers(sight: Sight) -> bool:
    """Whether there is enough noise: else losses need huge grids, epsilon means nothing, and any accountant will do."""
    return _multiplier(sight) >= SMALLEST_MULTIPLIER


def _multiplier(sight: Sight) -> float:
    match sight.event:
        case PoissonSampledDpEvent(event=event) | SampledWithoutReplacementDpEvent(event=event):
            return _multiplier(Sight(event))
        case MixtureOfGaussiansDpEvent(standard_deviation=std, sensitivities=means):
            return float(std / max(means))
        case (
            GaussianDpEvent()
            | LaplaceDpEvent()
            | PureDpEvent()
            | TruncatedSubsampledGaussianDpEvent()
            | RandomAllocationDpEvent()
        ):
            return float(sight.event.noise_multiplier)
        case _:
            raise UnsupportedEvent(f"privacy loss distributions do not cover {named(sight.event)}.")


_Mixture = tuple[tuple[float, float], ...]


def _mixtures(std: float, present: _Mixture) -> tuple[Pair, Pair]:
    present = _possible(present)
    # Going back the line is mirrored, so that the loss grows along it again.
    nothing: _Mixture = ((1.0, 0.0),)
    return GaussianMixtures(std, present, nothing), GaussianMixtures(std, nothing, _mirrored(present))


def _replaced(std: float, present: _Mixture) -> tuple[Pair, Pair]:
    present = _possible(present)
    pair = GaussianMixtures(std, present, _mirrored(present))
    return pair, pair


def _possible(mixture: _Mixture) -> _Mixture:
    return tuple((weight, mean) for weight, mean in mixture if weight > 0)


def _mirrored(mixture: _Mixture) -> _Mixture:
    return tuple((weight, -mean) for weight, mean in mixture)


def _truncated(event: TruncatedSubsampledGaussianDpEvent, sight: Sight) -> tuple[Pair, Pair]:
    size, cap, rate = event.dataset_size, event.truncated_batch_size, event.sampling_probability
    untouched = dominating_pairs(
        Sight(PoissonSampledDpEvent(rate, GaussianDpEvent(event.noise_multiplier)), sight.relation)
    )
    full = float(binom.sf(cap - 1, size - 1, rate))
    if full == 0:
        return untouched
    # In a full batch the unit may also push another one out, hence a replacement at twice the distance.
    joins = float(binom.sf(cap, size, rate)) * cap / (full * size)
    pushed = _replaced(event.noise_multiplier / 2, ((1 - joins, 0.0), (joins, 1.0)))
    (there, back), (there_full, back_full) = untouched, pushed
    return EitherPair(full, there_full, there), EitherPair(full, back_full, back)
