"""The default accountant: privacy loss distributions (PLD), composed numerically and rounded up.

`Direction` composes one direction of a comparison: data with the unit against data without it, or back. It chooses the
grid from a prediction: the moments of the privacy loss, which are cheap, predict epsilon by Chernoff's bound, and the
prediction decides the tilt, the window and the interval of the grid. If it is wrong, the result is less tight, not less
valid. `loss_grid` composes, `dominating_pairs` has the pairs of distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from sordino.accounting.accountant_views import REPLACE_ONE, AccountantView
from sordino.accounting.balls_in_bins import AllocatedGaussian
from sordino.accounting.curves import SMALLEST_DELTA, deltas_of
from sordino.accounting.dominating_pairs import (
    EitherPair,
    FixedSizeBatches,
    GaussianMixtures,
    Laplaces,
    Losses,
    Pair,
    Reals,
)
from sordino.accounting.events import PureDpEvent, RandomAllocationDpEvent, named
from sordino.accounting.loss_grid import DeltaBounds, LossGrid, compose
from sordino.accounting.pure import MOST_EXACT_STEPS, Binomial
from sordino.accounting.randomized_response import RandomizedResponse
from sordino.errors import UnsupportedEvent

MOST_LOSSES_OF_A_STEP = 2**16
MOST_PLACES = 2**20
MOST_DIGITS = 2.0**-40  # smallest interval relative to a loss; a smaller one would be lost in rounding errors
RELATIVE_ERROR = 5e-5


@dataclass(frozen=True)
class Direction:
    """One direction of a composition in which pair `n` runs `counts[n]` times."""

    pairs: tuple[Pair, ...]
    counts: tuple[int, ...]
    name: str = "pld"

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon that the grids prove at `delta`. Infinite if they prove none."""
        log_delta = math.log(delta)
        losses = self._losses(log_delta)
        tilt = _minimizer(lambda tilt: (losses.log_moment(tilt) - log_delta) / tilt)
        predicted = (losses.log_moment(tilt) - log_delta) / tilt
        answer = self._epsilon_near(predicted, tilt, losses, delta)
        # If single steps have rare but large losses, the prediction is far too high, and the grid too coarse for the
        # answer. The answer is a bound nevertheless, and serves as the next prediction.
        for _ in range(4):
            if not 0 < answer < 0.9 * predicted:
                break
            predicted = answer
            tilt, _ = losses.chernoff(predicted)
            answer = min(answer, self._epsilon_near(predicted, tilt, losses, delta))
        return answer

    def _epsilon_near(self, predicted: float, tilt: float, losses: TotalLosses, delta: float) -> float:
        spread = losses.spread(tilt) + 1 / tilt
        composed = self._composed(losses, tilt, predicted, low=predicted - 4 * spread)
        if composed.delta[0] > delta or composed.start <= 0:
            return composed.epsilon(delta)
        if self.delta(0.0) <= delta:
            return 0.0
        return self._composed(losses, tilt, predicted, low=predicted - 40 * spread).epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta that the grids prove at `epsilon`, and at least `SMALLEST_DELTA`."""
        return self._from(epsilon)[1]

    def deltas(self, epsilons: Reals) -> Reals:
        """Deltas at many rising epsilons, from few grids. A grid is used until delta falls to 1/1000 of its first."""
        deltas = np.ones(len(epsilons))
        composed, lowest = None, math.inf
        for index, epsilon in enumerate(epsilons.tolist()):
            if composed is None or composed.delta_at(epsilon) < lowest:
                composed, first = self._from(epsilon)
                deltas[index], lowest = first, 1e-3 * first
            else:
                deltas[index] = composed.delta_at(epsilon)
        return np.minimum.accumulate(deltas)  # a delta that holds at an epsilon holds at every larger one

    def _from(self, epsilon: float) -> tuple[DeltaBounds, float]:
        """A grid that begins at `epsilon`, and the delta there."""
        least = math.log(SMALLEST_DELTA)
        log_delta = min(0.0, self._losses(least).chernoff(epsilon)[1])
        answer = 1.0
        # If losses are rare, the prediction is far too high, and so are the errors that it allows. The answer is a
        # bound nevertheless, and serves as the next prediction.
        for _ in range(4):
            losses = self._losses(max(least, log_delta - 5))
            tilt, predicted = losses.chernoff(epsilon)
            beyond = max(0.0, predicted - log_delta)
            composed = self._composed(losses, tilt, epsilon, low=epsilon - 1e-9, beyond=beyond)
            answer = min(answer, composed.delta_at(epsilon))
            if answer > math.exp(log_delta - 7) or answer <= SMALLEST_DELTA:
                break
            log_delta = math.log(answer)
        return composed, answer

    def _composed(
        self, losses: TotalLosses, tilt: float, epsilon: float, low: float, beyond: float = 0.0
    ) -> DeltaBounds:
        """Delta from `low` upwards. Losses above the window have at most exp(-16 - `beyond`) of the predicted delta."""
        spread = losses.spread(tilt)
        high = epsilon + 4 * spread + (16 + beyond) / tilt
        steps = sum(self.counts)
        # A grid of this interval adds interval^2 / 12 to half the variance of each step's loss, which moves epsilon by
        # steps * interval^2 * (tilt + 1) / 12.
        interval = math.sqrt(12 * RELATIVE_ERROR * max(epsilon, spread) / (steps * (tilt + 1)))
        least = losses.least(tilt)
        # A coarser grid is less tight and equally valid, so memory and the precision of a loss may limit how fine it
        # is. Quadrature nodes end before the highest loss. With a strong tilt, only a small part of the losses counts,
        # and nearly all of the range is beyond the last node.
        range_of_a_step = max(each.highest - start for each, start in zip(losses.losses, least, strict=True))
        rounding = MOST_DIGITS * max(abs(each.highest) for each in losses.losses)
        interval = max(interval, range_of_a_step / MOST_LOSSES_OF_A_STEP, (high - low) / MOST_PLACES, rounding)
        grids = [
            LossGrid.of(pair.losses(losses.log_tail, interval, start), interval)
            for pair, start in zip(self.pairs, least, strict=True)
        ]
        return compose(grids, self.counts, tilt=tilt, low=low, high=high)

    def _losses(self, log_delta: float) -> TotalLosses:
        # The losses that are left out in all steps have a total probability below 1/10,000 of delta.
        log_tail = log_delta - math.log(sum(self.counts)) - 9.5
        return TotalLosses(tuple(pair.losses(log_tail) for pair in self.pairs), self.counts, log_tail)


def _minimizer(objective: Callable[[float], float]) -> float:
    """The smallest tilt that nearly minimizes the objective, which may decrease towards a limit without a minimum."""
    scan = np.arange(-16.0, 24.0)
    values = np.array([objective(math.exp(log)) for log in scan])
    start = float(scan[np.argmax(values <= values.min() + 1e-3 * abs(values.min()))])
    refined = minimize_scalar(
        lambda log: objective(math.exp(log)), bounds=(start - 1, start + 1), options={"xatol": 1e-2}
    )
    return math.exp(float(refined.x))


@dataclass(frozen=True)
class TotalLosses:
    """Moments of the total privacy loss of a composition."""

    losses: tuple[Losses, ...]
    counts: tuple[int, ...]
    log_tail: float

    def log_moment(self, tilt: float) -> float:
        """log E[exp(tilt * loss)]."""
        return math.fsum(
            count * self._tilted(each, tilt)[0] for each, count in zip(self.losses, self.counts, strict=True)
        )

    def chernoff(self, epsilon: float) -> tuple[float, float]:
        """The tilt for which Chernoff's bound on delta at `epsilon` is smallest, and the logarithm of the bound."""
        least = math.log(SMALLEST_DELTA)

        def predicted(tilt: float) -> float:
            return self.log_moment(tilt) - tilt * epsilon

        # Below `least` any tilt is good enough. Values there are reflected, so that the search finds a moderate tilt.
        tilt = _minimizer(lambda tilt: max(predicted(tilt), 2 * least - predicted(tilt)))
        # At an epsilon below the mean loss no tilt is needed. A small tilt keeps the window as narrow as the losses,
        # unless rare losses are so large that they would dominate.
        spread = self.spread(tilt)
        if spread > 0 and tilt < 1 / spread:
            low, high = math.log(tilt), -math.log(spread)
            for _ in range(8):
                middle = (low + high) / 2
                low, high = (middle, high) if self.log_moment(math.exp(middle)) <= 1 else (low, middle)
            tilt = math.exp(low)
        return tilt, predicted(tilt)

    def spread(self, tilt: float) -> float:
        """The standard deviation of the loss after tilting."""
        return math.sqrt(
            math.fsum(c * self._tilted(each, tilt)[1] for each, c in zip(self.losses, self.counts, strict=True))
        )

    def least(self, tilt: float) -> list[float]:
        """For each mechanism, a loss below which all losses together are negligible after tilting."""
        log_steps = math.log(sum(self.counts))
        starts = [(self._tilted(each, tilt)[0] - 40 - log_steps) / tilt for each in self.losses]
        return [max(start, float(each.loss.min())) for start, each in zip(starts, self.losses, strict=True)]

    @staticmethod
    def _tilted(losses: Losses, tilt: float) -> tuple[float, float]:
        exponent = tilt * losses.loss + losses.log_mass
        top = float(exponent.max())
        weight = np.exp(exponent - top)
        total = float(weight.sum())
        mean = float(weight @ losses.loss) / total
        return top + math.log(total), float(weight @ (losses.loss - mean) ** 2) / total


SMALLEST_MULTIPLIER = 0.05


@dataclass(frozen=True)
class PldCurve:
    """The privacy curve of a composition, given the view and the count of each mechanism.

    >>> from sordino.accounting.accountant_views import AccountantView
    >>> curve = PldCurve.of([(AccountantView(PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(1.1))), 14_062)])
    >>> round(curve.epsilon(1e-5), 2)
    2.38
    """

    views: tuple[tuple[AccountantView, int], ...]
    name: str = "pld"

    @classmethod
    def of(cls, views: Iterable[tuple[AccountantView, int]], name: str = "pld") -> PldCurve:
        return cls(tuple(views), name)

    def epsilon(self, delta: float) -> float:
        return self._composed.epsilon(delta) if self._has_enough_noise else math.inf

    def delta(self, epsilon: float) -> float:
        return self._composed.delta(epsilon) if self._has_enough_noise else 1.0

    def deltas(self, epsilons: Reals) -> Reals:
        return self._composed.deltas(epsilons) if self._has_enough_noise else np.ones(len(epsilons))

    @cached_property
    def _has_enough_noise(self) -> bool:
        return all(has_enough_noise(view) for view, _ in self.views)

    @cached_property
    def _composed(self) -> PairsCurve:
        pairs = tuple(dominating_pairs(view) for view, _ in self.views)
        return PairsCurve(pairs, tuple(count for _, count in self.views), self.name)


@dataclass(frozen=True)
class PairsCurve:
    """The privacy curve of a composition of dominating pairs, each in both directions, with their counts."""

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
        """The comparison of data with the unit to data without it, and back. Only one of them if they are equal."""
        return [_direction(each, self.counts) for each in dict.fromkeys(zip(*self.pairs, strict=True))]


def _direction(pairs: tuple[Pair, ...], counts: tuple[int, ...]) -> Direction | Binomial:
    match pairs, counts:
        case [RandomizedResponse() as response], [steps] if steps <= MOST_EXACT_STEPS:
            return Binomial(response, steps)
        case _:
            return Direction(pairs, counts)


@lru_cache(maxsize=4096)  # similar small trainings, as in a cross-validation, need the same values in each step
def _epsilon(direction: Direction | Binomial, delta: float) -> float:
    return direction.epsilon(delta)


def dominating_pairs(view: AccountantView) -> tuple[Pair, Pair]:
    """The dominating pairs of one mechanism: data with the unit against data without it, and the reverse.

    Sources: Zhu, Dong and Wang (2022) for Poisson sampling and for batches of a fixed size, Ganesh (2025) for truncated
    Poisson sampling, `balls_in_bins` for one epoch of random allocation, `randomized_response` for pure noise.
    """
    match view.event:
        case GaussianDpEvent(noise_multiplier=std):
            return _mixtures(std, ((1.0, 1.0),))
        case PoissonSampledDpEvent(sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=std)):
            present = ((1 - rate, 0.0), (rate, 1.0))
            return _replaced(std, present) if view.relation is REPLACE_ONE else _mixtures(std, present)
        case MixtureOfGaussiansDpEvent(standard_deviation=std, sensitivities=means, sampling_probs=weights):
            return _mixtures(std, tuple(zip(weights, means, strict=True)))
        case TruncatedSubsampledGaussianDpEvent():
            return _truncated(view.event, view)
        case SampledWithoutReplacementDpEvent(event=GaussianDpEvent(noise_multiplier=std)):
            pair = FixedSizeBatches(std, view.event.sample_size / view.event.source_dataset_size)
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
            raise UnsupportedEvent(f"privacy loss distributions do not cover {named(view.event)}.")


def has_enough_noise(view: AccountantView) -> bool:
    """Whether PLD is used for this view. With less noise grids would be huge, and epsilon too large to matter."""
    return _multiplier(view) >= SMALLEST_MULTIPLIER


def _multiplier(view: AccountantView) -> float:
    match view.event:
        case PoissonSampledDpEvent(event=event) | SampledWithoutReplacementDpEvent(event=event):
            return _multiplier(AccountantView(event))
        case MixtureOfGaussiansDpEvent(standard_deviation=std, sensitivities=means):
            return float(std / max(means))
        case (
            GaussianDpEvent()
            | LaplaceDpEvent()
            | PureDpEvent()
            | TruncatedSubsampledGaussianDpEvent()
            | RandomAllocationDpEvent()
        ):
            return float(view.event.noise_multiplier)
        case _:
            raise UnsupportedEvent(f"privacy loss distributions do not cover {named(view.event)}.")


_Mixture = tuple[tuple[float, float], ...]


def _mixtures(std: float, present: _Mixture) -> tuple[Pair, Pair]:
    present = _possible(present)
    absent: _Mixture = ((1.0, 0.0),)
    # In the reverse direction the line is mirrored, so that the loss increases along it again.
    return GaussianMixtures(std, present, absent), GaussianMixtures(std, absent, _mirrored(present))


def _replaced(std: float, present: _Mixture) -> tuple[Pair, Pair]:
    present = _possible(present)
    pair = GaussianMixtures(std, present, _mirrored(present))
    return pair, pair


def _possible(mixture: _Mixture) -> _Mixture:
    return tuple((weight, mean) for weight, mean in mixture if weight > 0)


def _mirrored(mixture: _Mixture) -> _Mixture:
    return tuple((weight, -mean) for weight, mean in mixture)


def _truncated(event: TruncatedSubsampledGaussianDpEvent, view: AccountantView) -> tuple[Pair, Pair]:
    size, cap, rate = event.dataset_size, event.truncated_batch_size, event.sampling_probability
    not_full = dominating_pairs(
        AccountantView(PoissonSampledDpEvent(rate, GaussianDpEvent(event.noise_multiplier)), view.relation)
    )
    full = float(binom.sf(cap - 1, size - 1, rate))
    if full == 0:
        return not_full
    # In a full batch the unit takes the place of another one. That is a replacement, at twice the distance.
    joins = float(binom.sf(cap, size, rate)) * cap / (full * size)
    replaced = _replaced(event.noise_multiplier / 2, ((1 - joins, 0.0), (joins, 1.0)))
    (there, back), (there_full, back_full) = not_full, replaced
    return EitherPair(full, there_full, there), EitherPair(full, back_full, back)
