"""Privacy of hyperparameter tuning: the release of the best of a random number of trials.

Let Q be a mechanism with values in an ordered set, and K a number of trials that is drawn independently of the data.
The best of K independent runs of Q is released, and nothing else. If K were known, each trial would have to be charged.
So K and all other results must stay secret. K is Poisson or a truncated negative binomial. There are two bounds:

In Renyi divergences, which compose (`divergences_of_best`): Papernot and Steinke (2022), Theorems 2 and 6.

From the privacy curve of a trial, for one selection by itself (`BestOf`): Koskela, Redberg and Wang (2024).
Theorem. Let f be the generating function of K, whose derivative f' is increasing. For every t let T(t) bound the
probability under one dataset of any event that has probability t under its neighbor, and let `ratio` be the largest
f'(1 - t) / f'(1 - T(t)). Then for epsilon >= 0

    delta(epsilon) of the best  <=  E[K] * delta(epsilon - log(ratio)) of a trial.

Proof. Among equal values the first is kept, which is equivalent to breaking ties by independent random values. So let P
and P' be distributions of Q without ties, and t and t' the probabilities of values above y under them. The densities of
the best value at y are f'(1 - t) dP and f'(1 - t') dP', where t' <= T(t), and f'(1 - t') >= f'(1 - t) / ratio. Their
hockey-stick divergence at alpha is at most the integral of f'(1 - t) (dP - (alpha / ratio) dP')+, where
f' <= f'(1) = E[K]. The event that there is no trial has equal probability under both, and adds nothing for alpha >= 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from sordino._input import validate
from sordino.accounting.accountant_views import views_of
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.curves import SMALLEST_DELTA, PrivacyCurve, deltas_of
from sordino.accounting.dominating_pairs import ProfilePair, Reals
from sordino.accounting.events import Repeated, flatten
from sordino.accounting.rdp import ORDERS, RdpCurve, renyi

NAME = "repeat-and-select"
LARGEST_MEAN = 1e6
_PLACES, _NEGLIGIBLE = 400, 1e-22  # for a pair made from a curve: the number of epsilons, and delta at the last one
_SLOPES = np.concatenate([[0.0], np.geomspace(0.01, 12.0, 40)])  # logarithms of the slopes of the lines that bound T


def has_selection(parts: Iterable[Repeated]) -> bool:
    """Whether a part of a composition is a selection of the best of several trials."""
    return any(isinstance(part.mechanism, RepeatAndSelectDpEvent) for part in parts)


def selection_curve(parts: Iterable[Repeated], adjacency: Adjacency) -> RdpCurve:
    """The RDP curve of a composition with selections. Both directions are bounded by the worse one.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> best_of_about_eight = RepeatAndSelectDpEvent(GaussianDpEvent(4.0), mean=8.0, shape=0.0)
    >>> round(selection_curve(flatten(best_of_about_eight), Adjacency.ZERO_OUT).epsilon(1e-5), 2)
    1.74
    """
    divergences = _composed(parts, adjacency)
    return RdpCurve(divergences, divergences, NAME)


@dataclass(frozen=True)
class BestOf:
    """The curve of the best of K trials, from the curve of one `trial`, which must hold in both directions.

    >>> from sordino.accounting.curves import GaussianCurve
    >>> round(BestOf(GaussianCurve(1 / 4), mean=8.0, shape=0.0).epsilon(1e-5), 2)
    1.37
    """

    trial: PrivacyCurve
    mean: float
    shape: float
    name: str = "repeat-and-select-curve"

    def epsilon(self, delta: float) -> float:
        if delta / self.mean < SMALLEST_DELTA:
            return math.inf
        return self.trial.epsilon(delta / self.mean) + self.log_ratio

    def delta(self, epsilon: float) -> float:
        left = epsilon - self.log_ratio
        # For `left` below 0: the reverse divergence at 1 / alpha, which the curve bounds as well.
        single = self.trial.delta(left) if left >= 0 else 1 - math.exp(left) * (1 - self.trial.delta(-left))
        return min(1.0, self.mean * single)

    def pair(self) -> ProfilePair | None:
        """A pair of distributions for compositions, or None if a trial has no bound."""
        farthest = self.trial.epsilon(_NEGLIGIBLE / self.mean)
        if math.isinf(farthest):
            return None
        # Points so close together that rounding dominates the slope between them would make the bound worse.
        left = np.linspace(0.0, max(farthest, 1e-5 * _PLACES), _PLACES)
        places = _PLACES // 4 if self.log_ratio > 1e-5 * _PLACES else 0
        short = np.linspace(self.log_ratio, 0.0, places, endpoint=False)  # how far epsilon is below `log_ratio`
        before = 1 - np.exp(-short) * (1 - deltas_of(self.trial, short[::-1])[::-1])
        deltas = np.minimum(1.0, self.mean * np.append(before, deltas_of(self.trial, left)))
        epsilons = np.append(self.log_ratio - short, left + self.log_ratio)
        return ProfilePair(tuple(epsilons.tolist()), tuple(np.minimum.accumulate(deltas).tolist()))

    @cached_property
    def log_ratio(self) -> float:
        """The logarithm of the largest f'(1 - t) / f'(1 - T(t)), where T is the minimum of several lines.

        A trial is (e, delta)-private for many e, and each gives a line: T(t) <= exp(e) t + delta. Between the bends of
        the minimum of all lines, the ratio is monotone: it is a function of a quotient of linear functions, or the
        exponential of a linear function.
        """
        deltas = deltas_of(self.trial, _SLOPES)
        slopes = np.append(np.exp(_SLOPES), 0.0)
        offsets = np.append(deltas, 1.0)  # the last line is T <= 1
        with np.errstate(divide="ignore", invalid="ignore"):
            bends = (offsets[:, None] - offsets) / (slopes - slopes[:, None])
        t = np.append(bends[(bends > 0) & (bends < 1)], [0.0, 1.0])
        above = np.min(slopes[:, None] * t + offsets[:, None], axis=0)
        return float(np.max(self._log_fall(above) - self._log_fall(t))) * (1 + 1e-9)

    def _log_fall(self, t: Reals) -> Reals:
        """log(f'(1) / f'(1 - t))."""
        if math.isinf(self.shape):
            return self.mean * t
        gamma = halting_probability(self.mean, self.shape)
        return np.asarray((1 + self.shape) * np.log1p((1 / gamma - 1) * t))


def divergences_of_best(divergences: Reals, *, mean: float, shape: float) -> Reals:
    """The Renyi divergences, at `ORDERS`, of the best of K trials that have `divergences` each.

    K has mean `mean`. `shape` is infinite for Poisson, 0 for logarithmic and 1 for geometric K; other values are for
    truncated negative binomials.

    >>> one = ORDERS / (2 * 4.0**2)
    >>> bool((divergences_of_best(one, mean=8.0, shape=0.0) > one).all())
    True
    """
    if math.isinf(shape):
        # The deltas at which one trial is (log(1 + 1 / (order - 1)), delta)-private.
        one = RdpCurve(divergences, divergences)
        others = mean * np.array([one.delta(math.log1p(1 / (order - 1))) for order in ORDERS])
    else:
        ends = -math.log(halting_probability(mean, shape))
        others = np.full_like(ORDERS, (1 + shape) * np.min((1 - 1 / ORDERS) * divergences + ends / ORDERS))
    best = divergences + others + math.log(mean) / (ORDERS - 1)
    return np.minimum.accumulate(best[::-1])[::-1]  # a divergence never decreases with its order


def halting_probability(mean: float, shape: float) -> float:
    """The parameter gamma of the truncated negative binomial distribution of this mean and shape.

    Its mean is shape (1 / gamma - 1) / (1 - gamma^shape), and (1 / gamma - 1) / log(1 / gamma) at shape 0.

    >>> halting_probability(10.0, 1.0)
    0.1
    """
    check_number_of_trials(mean, shape)
    if shape == 1:
        return 1 / mean
    low, high = -math.log(1e12 * mean), 0.0  # logarithms of gamma: the mean falls from very large to 1
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if _mean(middle, shape) < mean else (middle, high)
    return math.exp(low)


def check_number_of_trials(mean: object, shape: object) -> None:
    """Refuses distributions of the number of trials that the theorem does not cover, or that take too long to run."""
    validate.between(1, LARGEST_MEAN, mean=mean)
    if shape != math.inf:
        validate.between(0, 1e6, shape=shape)


def _mean(log_gamma: float, shape: float) -> float:
    if log_gamma == 0:
        return 1.0
    numerator, denominator = math.expm1(-log_gamma), -math.expm1(shape * log_gamma)
    # For a tiny shape or logarithm the denominator underflows; it is then shape * -log_gamma.
    return shape * numerator / denominator if denominator > 0 else numerator / -log_gamma


def _composed(parts: Iterable[Repeated], adjacency: Adjacency) -> Reals:
    total = np.zeros_like(ORDERS)
    for part in parts:
        total = total + part.count * _single(part, adjacency)
    return total


def _single(part: Repeated, adjacency: Adjacency) -> Reals:
    if isinstance(part.mechanism, RepeatAndSelectDpEvent):
        trial, mean, shape = part.mechanism.event, part.mechanism.mean, part.mechanism.shape
        check_number_of_trials(mean, shape)
        return divergences_of_best(_composed(flatten(trial), adjacency), mean=mean, shape=shape)
    views = views_of(part.mechanism, adjacency)
    if views.plain.event.noise_multiplier == 0:
        return np.full_like(ORDERS, math.inf)
    # The theorem uses both directions of a trial, so both are bounded by the worse one.
    return np.maximum(*renyi(views.rdp or views.plain))
