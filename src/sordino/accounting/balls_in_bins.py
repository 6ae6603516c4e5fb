"""Accounting of balls in bins (random allocation): each unit joins one of `bins` Gaussian steps per epoch, at random.

In each epoch, a unit turns `lower` = N(0, s^2 I) into `upper`, an even mixture of N(e_t, s^2 I) over the steps t (Chua
et al. 2024). Let x be a draw from `lower`, and y_t = exp((x_t - 1/2) / s^2). The ratio of the two densities at x is the
mean R of the y_t, which are independent. There are three accountants:

* Renyi divergences (`renyi_of_removing`, `renyi_of_adding`): the moments of R give the divergences of both directions
  (Feldman and Shenfeld 2025). Divergences of epochs add up.

* The dominating pair of one epoch (`AllocatedGaussian`). The hockey-stick divergences are E[(R - a)+] for data with the
  unit against data without it, and E[(1 - a R)+] in reverse. Both are expectations of convex functions of R. So if R is
  spread without moving its mean, the pair becomes less private, for every a and in both directions: the pair of the
  spread ratio dominates this one. A mean of independent variables is spread if one of them is. So each value is split
  between the two nearest points of a grid such that its mean stays ("connect the dots"), first for each y, then for
  each mean of two means. The grid is even in log y: if y is k grid points above y', their mean is above y' by a number
  of grid points that depends on k alone.

* `TightAllocation`: the numerical bound of the optional package `PLD_accounting`, which takes minutes for one epsilon.
  `AllocatedGaussian` is as tight and takes less than a second. The two share no code, and so check each other. Results
  are cached in the user's cache directory, one small JSON file each.

Index letters: `i` is a point of the grid ("place"), at the ratio exp((lowest + i) * interval); `k` is a distance in
places.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from scipy.special import gammaln, ndtr

from sordino.accounting.dominating_pairs import Losses, Reals
from sordino.errors import UsageError

LARGEST_ORDER = 320
ROUNDING_OF_LOG = 1e-10
SMALLEST_MULTIPLIER_FOR_QUADRATURE = 0.2


def renyi_of_removing(multiplier: float, bins: int, orders: Reals) -> Reals:
    """Divergences of the data with the unit from the data without it, over one epoch. Infinite above the largest order.

    >>> bool(abs(renyi_of_removing(2.0, bins=1, orders=np.array([2.0]))[0] - 0.25) < 1e-8)  # a plain Gaussian
    True
    """
    log_moment = _log_moments(multiplier, bins)
    below = np.floor(orders).clip(1, LARGEST_ORDER - 1).astype(np.int64)
    # The logarithm of a moment is convex in the order, so linear interpolation of integer orders is an upper bound.
    fraction = orders - below
    between = (1 - fraction) * log_moment[below] + fraction * log_moment[below + 1]
    return np.where(orders <= LARGEST_ORDER, (between + ROUNDING_OF_LOG) / (orders - 1), math.inf)


@lru_cache(maxsize=64)
def _log_moments(multiplier: float, bins: int) -> Reals:
    """log E[(mean of y_t)^order] for the orders 0, 1, ..., `LARGEST_ORDER`.

    By the multinomial theorem the moment is order! / bins^order times the coefficient of z^order in f(z)^bins, where
    f(z) is the sum over j of E[y^j] z^j / j!, and E[y^j] = exp((j^2 - j) / (2 s^2)). This is the sum over partitions of
    Feldman and Shenfeld, collected by powers. All coefficients are positive, so logarithms lose no accuracy.
    """
    j = np.arange(LARGEST_ORDER + 1)
    power = (j * j - j) / (2 * multiplier**2) - gammaln(j + 1)
    total = np.where(j == 0, 0.0, -math.inf)
    remaining = bins
    while remaining:
        if remaining % 2:
            total = _multiplied(total, power)
        power = _multiplied(power, power)
        remaining //= 2
    return total + gammaln(j + 1) - j * math.log(bins)


def _multiplied(first: Reals, second: Reals) -> Reals:
    """The product of two power series given by the logarithms of their coefficients."""
    return np.array([_log_sum(first[: n + 1] + second[n::-1]) for n in range(len(first))])


def renyi_of_adding(multiplier: float, bins: int, orders: Reals) -> Reals:
    """Divergences of the data without the unit from the data with it, over one epoch.

    >>> bool(abs(renyi_of_adding(2.0, bins=1, orders=np.array([2.0]))[0] - 0.25) < 1e-8)
    True
    """
    # Jensen: the logarithm of a mean is at least the mean of the logarithms, which is Gaussian.
    by_jensen = orders / (2 * multiplier**2 * bins) + (1 - 1 / bins) / (2 * multiplier**2)
    if multiplier < SMALLEST_MULTIPLIER_FOR_QUADRATURE:
        return np.asarray(by_jensen)
    highest = 1 + min(255.0, 60 * multiplier)
    # Divergences increase with the order, so the lowest computed order is an upper bound for those below it.
    computed = np.clip(orders, 1.5, highest)
    exact = _exact_renyi_of_adding(multiplier, bins, tuple(np.unique(computed)))
    by_quadrature = np.array([exact[order] for order in computed])
    return np.where(orders <= highest, np.minimum(by_jensen, by_quadrature), by_jensen)


@lru_cache(maxsize=64)
def _exact_renyi_of_adding(multiplier: float, bins: int, orders: tuple[float, ...]) -> dict[float, float]:
    """Divergences from E[mean^-b] = (integral of u^(b - 1) E[exp(-u y / bins)]^bins du) / Gamma(b), b = order - 1.

    The integral is over log u and the expectation over x, both by the trapezoid rule. Its error is below rounding for
    analytic integrands that vanish at both ends. The ends depend on b: x is needed down to about -b / s.
    """
    b = np.array(orders) - 1
    lowest = -(14 + b.max() / multiplier)
    x = np.arange(lowest, 14, min(1.0, multiplier) / 8)
    log_y = x / multiplier - 1 / (2 * multiplier**2)
    log_weight = -(x**2) / 2 - math.log(math.sqrt(2 * math.pi) / (x[1] - x[0]))
    step = 0.05
    log_u = np.arange(-50 / b.min(), -log_y[0] + math.log(b.max() + 100), step)
    log_mean = np.array([_log_sum(log_weight - np.exp(np.minimum(each + log_y, 700.0))) for each in log_u])
    # Scaling u by the number of bins turns exp(-u y / bins) into exp(-u y).
    scaled = log_u + math.log(bins)
    log_moment = np.array([_log_sum(each * scaled + bins * log_mean) for each in b]) + math.log(step) - gammaln(b)
    rounded_up = np.maximum(log_moment, 0.0) + ROUNDING_OF_LOG + 1e-14 * bins
    return dict(zip(orders, rounded_up / b, strict=True))


def _log_sum(logarithms: Reals) -> float:
    """The logarithm of a sum. SciPy's `logsumexp` takes ten times as long for a few hundred values."""
    top = float(logarithms.max())
    return top + math.log(float(np.exp(logarithms - top).sum()))


MOST_PLACES = 4096
_LARGEST_LOG = 650.0  # largest logarithm of a ratio, so that it and its inverse are finite; larger ones are infinite
_COARSE_TAIL = 50.0  # logarithms of tails are rounded down to multiples of this, so that few grids are computed


@dataclass(frozen=True)
class AllocatedGaussian:
    """The pair of one epoch in which a unit joins one of `bins` steps with Gaussian noise.

    If `present_above`, `upper` is the distribution for data with the unit, otherwise `lower` is.

    >>> nodes = AllocatedGaussian(multiplier=1.0, bins=2, present_above=True).losses(log_tail=-40.0)
    >>> round(float(nodes.mass.sum()), 6), bool(nodes.infinite < 1e-17)
    (1.0, True)
    """

    multiplier: float
    bins: int
    present_above: bool

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        ratio = mean_ratio(self.multiplier, self.bins, _COARSE_TAIL * math.floor(log_tail / _COARSE_TAIL))
        loss = ratio.log_ratios if self.present_above else -ratio.log_ratios
        mass = ratio.mass * ratio.ratios if self.present_above else ratio.mass
        infinite = ratio.escaped if self.present_above else ratio.zero
        loss = np.maximum(loss, least)
        # Far more than the rounding errors of sums of positive terms. Those of a single y count once for each bin.
        rounded_up = 1 + 1e-10 + 1e-14 * self.bins
        return Losses(loss, mass * rounded_up, infinite * rounded_up, float(loss.max()))


@dataclass(frozen=True)
class Ratio:
    """A random ratio of mean 1 on a grid: probability `mass[i]` at place `i`, and `zero` at 0.

    `escaped` is the part of its mean that is at infinity.
    """

    interval: float
    lowest: int
    mass: Reals
    zero: float
    escaped: float

    @property
    def log_ratios(self) -> Reals:
        return (self.lowest + np.arange(len(self.mass), dtype=np.float64)) * self.interval

    @property
    def ratios(self) -> Reals:
        return np.asarray(np.exp(self.log_ratios))

    def trimmed(self, tail: float) -> Ratio:
        """The ratio without ends of weight at most `tail`, which are split such that its mean stays.

        The lower end is split between 0 and the first place that is kept, the upper one between the last and infinity.
        """
        ratios = self.ratios
        joined = self.mass * ratios
        # Cumulative sums from each end are accurate where they are small.
        low = int(np.searchsorted(np.cumsum(self.mass), tail, side="right"))
        high = len(self.mass) - int(np.searchsorted(np.cumsum(joined[::-1]), tail, side="right"))
        low, high = min(low, len(self.mass) - 1), max(high, 1)
        if low >= high:
            return self
        mass = self.mass[low:high].copy()
        kept = float(joined[:low].sum() / ratios[low])
        mass[0] += kept
        above = float(self.mass[high:].sum())
        mass[-1] += above
        return Ratio(
            self.interval,
            self.lowest + low,
            mass,
            self.zero + max(0.0, float(self.mass[:low].sum()) - kept),
            self.escaped + max(0.0, float(joined[high:].sum()) - above * float(ratios[high - 1])),
        )


@lru_cache(maxsize=64)
def mean_ratio(multiplier: float, bins: int, log_tail: float) -> Ratio:
    """The mean of `bins` independent y, by repeated doubling."""
    tail = math.exp(log_tail) / 64
    one = _log_normal(multiplier, log_tail)
    # Let n be the number given by the first binary digits of `bins`. The loop keeps the means of n and of n + 1 values.
    mean, with_one_more = one, _mean_of_two(one, 1, one, 1, tail)
    number = 1
    for digit in bin(bins)[3:]:
        between = _mean_of_two(mean, number, with_one_more, number + 1, tail)
        if digit == "0":
            mean, with_one_more = _mean_of_two(mean, 1, mean, 1, tail), between
        else:
            mean, with_one_more = between, _mean_of_two(with_one_more, 1, with_one_more, 1, tail)
        number = 2 * number + int(digit)
    return mean


def _log_normal(multiplier: float, log_tail: float) -> Ratio:
    """y = exp(z / s - 1 / (2 s^2)) for a standard normal z, each cell of the grid split between its ends."""
    reach = math.sqrt(-2 * log_tail) + 3
    center, width = -1 / (2 * multiplier**2), 1 / multiplier
    # From far below the center without the unit to far above the center with it, which is 1 / s^2 higher.
    low = max(-_LARGEST_LOG, center - reach * width)
    high = min(_LARGEST_LOG, -center + reach * width)
    interval = (high - low) / (MOST_PLACES - 2)
    lowest = math.floor(low / interval)
    log_ratio = (lowest + np.arange(MOST_PLACES, dtype=np.float64)) * interval
    absent, present = (log_ratio - center) / width, (log_ratio - center) / width - width
    mass, joined = _differences(absent), _differences(present)
    # The part of the mass between two places that moves up to the higher one, such that the mean stays.
    moved_up = np.clip((joined * np.exp(-log_ratio[:-1]) - mass) / math.expm1(interval), 0.0, mass)
    placed = np.append(mass - moved_up, 0.0)
    placed[1:] += moved_up
    # Mass below the grid is split between 0 and infinity, mass above it between the last place and infinity.
    placed[-1] += float(ndtr(-absent[-1]))
    escaped = float(ndtr(-present[-1]) + ndtr(present[0]))
    return Ratio(interval, lowest, placed, zero=float(ndtr(absent[0])), escaped=escaped)


def _differences(x: Reals) -> Reals:
    """The probabilities of a standard normal between adjacent values, from the tail in which they are accurate."""
    return np.where(x[1:] > 0, ndtr(-x[:-1]) - ndtr(-x[1:]), ndtr(x[1:]) - ndtr(x[:-1]))


def _mean_of_two(first: Ratio, weight: int, second: Ratio, other: int, tail: float) -> Ratio:
    """The weighted mean of two independent ratios, on a grid that is made finer if the range has become narrow."""
    a, b = weight / (weight + other), other / (weight + other)
    first, second = _on_same_grid(first, second)
    interval = first.interval
    finer = 2 if max(len(first.mass), len(second.mass)) < MOST_PLACES / 2 else 1
    step = interval / finer
    # If the second is k places above the first, the logarithm of the mean is log(a + b exp(k * interval)) above it.
    k = np.arange(second.lowest - first.lowest - len(first.mass) + 1, second.lowest - first.lowest + len(second.mass))
    above = np.logaddexp(math.log(a), math.log(b) + k * interval) / step
    above = np.clip(above, np.minimum(0, finer * k), np.maximum(0, finer * k))  # a mean is between the two values
    places = np.floor(above).astype(np.int64)
    moved_up = np.expm1((above - places) * step) / math.expm1(step)
    lowest = finer * min(first.lowest, second.lowest)
    highest = finer * max(first.lowest + len(first.mass), second.lowest + len(second.mass))
    mass = np.zeros(highest - lowest + 1)
    for distance, place, up in zip(k.tolist(), places.tolist(), moved_up.tolist(), strict=True):
        # All pairs of places at this distance.
        begin = max(0, second.lowest - first.lowest - distance)
        end = min(len(first.mass), second.lowest - first.lowest - distance + len(second.mass))
        shift = first.lowest + distance - second.lowest
        both = first.mass[begin:end] * second.mass[begin + shift : end + shift]
        at = finer * (first.lowest + begin) + place - lowest
        stop = at + finer * (end - begin - 1) + 1
        mass[at:stop:finer] += (1 - up) * both
        mass[at + 1 : stop + 1 : finer] += up * both
    # If one of them is 0, the mean is a fraction of the other one, and is split between 0 and the other one.
    zero = first.zero * second.zero
    for other_ratio, fraction, probability in ((first, a, second.zero), (second, b, first.zero)):
        at = finer * other_ratio.lowest - lowest
        mass[at : at + finer * len(other_ratio.mass) : finer] += fraction * probability * other_ratio.mass
        zero += (1 - fraction) * probability * float(other_ratio.mass.sum())
    return Ratio(step, lowest, mass, zero, a * first.escaped + b * second.escaped).trimmed(tail)


def _on_same_grid(first: Ratio, second: Ratio) -> tuple[Ratio, Ratio]:
    """Both ratios on the finer of their grids. Each finer grid contains the places of the coarser ones."""
    if first.interval == second.interval:
        return first, second
    if first.interval > second.interval:
        return _finer(first, second.interval), second
    return first, _finer(second, first.interval)


def _finer(ratio: Ratio, interval: float) -> Ratio:
    times = round(ratio.interval / interval)
    mass = np.zeros(times * (len(ratio.mass) - 1) + 1)
    mass[::times] = ratio.mass
    return Ratio(interval, times * ratio.lowest, mass, ratio.zero, ratio.escaped)


FORMAT = 1


@dataclass(frozen=True)
class TightAllocation:
    """The bound of `PLD_accounting` on random allocation over `epochs` epochs. It has epsilons only; `delta` is 1."""

    multiplier: float
    bins: int
    epochs: int
    name: str = "random-allocation-tight"

    def epsilon(self, delta: float) -> float:
        question = {**asdict(self), "delta": delta, "format": FORMAT, "PLD_accounting": _version()}
        known = recall(question)
        if known is not None:
            return known
        from PLD_accounting import gaussian_allocation_epsilon_range

        upper, _lower = gaussian_allocation_epsilon_range(
            delta=delta, sigma=self.multiplier, num_steps=self.bins, num_epochs=self.epochs
        )
        answer = max(0.0, float(upper)) if not math.isnan(upper) else math.inf
        remember(question, answer)
        return answer

    def delta(self, epsilon: float) -> float:
        return 1.0


def recall(question: dict[str, object]) -> float | None:
    """The cached epsilon, or None. A file whose content is for another question is ignored."""
    try:
        stored = json.loads(_file(question).read_text())
        answer = float(stored["epsilon"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return answer if stored.get("question") == question and answer >= 0 else None


def remember(question: dict[str, object], epsilon: float) -> None:
    """Writes an epsilon to the cache atomically."""
    path = _file(question)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({"question": question, "epsilon": epsilon}, file)
    os.replace(file.name, path)


def _file(question: dict[str, object]) -> Path:
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
    return cache_directory() / f"{name}.json"


def cache_directory() -> Path:
    """The directory of the cache: `$XDG_CACHE_HOME/sordino/random-allocation`, by default under `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sordino" / "random-allocation"


def _version() -> str:
    try:
        return version("PLD_accounting")
    except PackageNotFoundError as missing:
        raise UsageError(
            "a tight epsilon for random allocation needs the package PLD_accounting: pip install 'sordino[tight]'."
        ) from missing
