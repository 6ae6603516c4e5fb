"""Group privacy: the epsilon of several units together, such as a family, from the event of a guarantee for one."""

from __future__ import annotations

import math

from dp_accounting.dp_event import DpEvent, GaussianDpEvent, MixtureOfGaussiansDpEvent, PoissonSampledDpEvent
from scipy.stats import binom

from sordino._input import validate
from sordino.accounting.accountant_views import AccountantView, views_of
from sordino.accounting.adjacency import Adjacency
from sordino.accounting.curves import GaussianCurve, PrivacyCurve
from sordino.accounting.events import PureDpEvent, flatten
from sordino.accounting.pld import PldCurve
from sordino.accounting.selection import has_selection
from sordino.accounting.tightest import check_delta, privacy_of


def epsilon_for_group(event: DpEvent, adjacency: Adjacency, size: int, delta: float) -> float:
    """An epsilon that holds at `delta` for any `size` units together. Infinite if none is proved.

    >>> round(epsilon_for_group(GaussianDpEvent(4.0), Adjacency.ZERO_OUT, size=4, delta=1e-5), 6)
    4.377178
    """
    validate.count(size=size, at_most=1000)
    curve = privacy_of(event, adjacency)
    check_delta(delta, is_pure=curve.is_pure)
    if size == 1:
        return curve.epsilon(delta)
    pure = size * curve.epsilon(0.0) if curve.is_pure else math.inf
    if delta == 0:
        return pure
    without_sampling = _of_plain_gaussians(event, adjacency, size, delta)
    group_curve = _group_curve(event, adjacency, size)
    sampled = group_curve.epsilon(delta) if group_curve else by_hybrids(curve, size, delta)
    return min(without_sampling, sampled, pure)


def by_hybrids(curve: PrivacyCurve, size: int, delta: float) -> float:
    """Group privacy of any mechanism, by a chain of `size` neighbors, each (e, delta(e)) from the one before.

    The chain is (size * e, delta(e) * (1 + exp(e) + ... + exp((size - 1) * e)))-private for every e (Vadhan 2017,
    with the exact sum). The smallest e that meets `delta` is found by bisection.
    """

    def holds(e: float) -> bool:
        each = curve.delta(e)
        log_sum = (size - 1) * e + math.log(math.fsum(math.exp(-j * e) for j in range(size)))
        return each == 0 or math.log(each) + log_sum <= math.log(delta)

    low, high = 0.0, max(curve.epsilon(delta), 1e-6)
    if math.isinf(high):
        return math.inf
    while not holds(high):
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return size * high


def _of_plain_gaussians(event: DpEvent, adjacency: Adjacency, size: int, delta: float) -> float:
    # Without the sampling, a group moves each sum at most `size` times as far as one unit.
    if has_selection(flatten(event)):
        return math.inf
    mu_squared = 0.0
    for part in flatten(event):
        plain = views_of(part.mechanism, adjacency).plain.event
        if not isinstance(plain, GaussianDpEvent) or plain.noise_multiplier == 0:
            return math.inf
        mu_squared += part.count / plain.noise_multiplier**2
    return GaussianCurve(size * math.sqrt(mu_squared)).epsilon(delta)


def _group_curve(event: DpEvent, adjacency: Adjacency, size: int) -> PrivacyCurve | None:
    """The curve of a group for pure releases and Gaussians with or without Poisson sampling, or None for others.

    A binomial number of the group joins each step. The worst case is that all their vectors are parallel
    (Choquette-Choo et al. 2024, on mixtures of Gaussians).
    """
    if adjacency is Adjacency.REPLACE_ONE:
        return None
    views = []
    for part in flatten(event):
        match part.mechanism:
            case GaussianDpEvent(noise_multiplier=std) if std > 0:
                views.append((AccountantView(GaussianDpEvent(std / size)), part.count))
            case PureDpEvent(noise_multiplier=multiplier) if multiplier > 0:
                views.append((AccountantView(PureDpEvent(multiplier / size)), part.count))
            case PoissonSampledDpEvent(sampling_probability=rate, event=GaussianDpEvent(noise_multiplier=std)) if (
                std > 0
            ):
                joining = range(size + 1)
                weights = tuple(float(binom.pmf(j, size, rate)) for j in joining)
                mixture = MixtureOfGaussiansDpEvent(std, tuple(map(float, joining)), weights)
                views.append((AccountantView(mixture), part.count))
            case _:
                return None
    return PldCurve.of(views) if views else None
