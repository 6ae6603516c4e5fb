"""The best of a random number of trials: what it costs to tune, in Renyi divergences.

Theorem (Papernot and Steinke 2022, Theorems 2 and 6). Let Q be a mechanism with values in an ordered set, and K a
number of trials that is drawn without looking at the data. Releasing the best of K independent runs of Q, and nothing
else, costs as below, whether K is Poisson or a truncated negative binomial. A known K would have to be paid trial by
trial; what K was, and all that lost, must stay secret.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from sordino import validate
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.dominating import Reals
from sordino.accounting.events import Repeated, flatten
from sordino.accounting.rdp import ORDERS, RdpCurve, renyi
from sordino.accounting.visible import visible

NAME = "repeat-and-select"
LARGEST_MEAN = 1e6


def has_selection(parts: Iterable[Repeated]) -> bool:
    """Whether something in a composition is the best of several trials."""
    return any(isinstance(part.mechanism, RepeatAndSelectDpEvent) for part in parts)


def selection_curve(parts: Iterable[Repeated], adjacency: Adjacency) -> RdpCurve:
    """The curve of a composition in which there are selections. Both directions are bounded by the worse one.

    >>> from dp_accounting.dp_event import GaussianDpEvent
    >>> best_of_about_eight = RepeatAndSelectDpEvent(GaussianDpEvent(4.0), mean=8.0, shape=0.0)
    >>> round(selection_curve(flatten(best_of_about_eight), Adjacency.ZERO_OUT).epsilon(1e-5), 2)
    1.74
    """
    divergences = _composed(parts, adjacency)
    return RdpCurve(divergences, divergences, NAME)


def divergences_of_best(divergences: Reals, *, mean: float, shape: float) -> Reals:
    """The Renyi divergences, at `ORDERS`, of the best of K trials that have `divergences` each.

    K has this `mean`. An infinite `shape` is Poisson, 0 logarithmic, 1 geometric, others truncated negative binomial.

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
    return np.minimum.accumulate(best[::-1])[::-1]  # a divergence never falls with its order


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
    """Refuses what the theorem is not about, or nobody can wait for."""
    validate.between(1, LARGEST_MEAN, mean=mean)
    if shape != math.inf:
        validate.between(0, 1e6, shape=shape)


def _mean(log_gamma: float, shape: float) -> float:
    if log_gamma == 0:
        return 1.0
    gained = math.expm1(-log_gamma)
    return gained / -log_gamma if shape == 0 else shape * gained / -math.expm1(shape * log_gamma)


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
    seen = visible(part.mechanism, adjacency)
    if seen.plain.event.noise_multiplier == 0:
        return np.full_like(ORDERS, math.inf)
    # The theorem reads both directions of a trial, so each counts as the worse of the two.
    return np.maximum(*renyi(seen.rdp or seen.plain))
