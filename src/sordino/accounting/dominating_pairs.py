"""Dominating pairs: the worst-case pair of distributions of each mechanism, and the quadrature of its privacy loss.

A mechanism reveals at most as much as a draw from `upper` or `lower` reveals about which of the two it is from. The
privacy loss is log(upper / lower) at a draw from `upper`. Index letters: `x` is a point of the line, `i` a component of
a mixture.

`ProfilePair` makes a pair of distributions from a privacy curve, so that a mechanism with a curve composes like any
other. Let H(a) be the hockey-stick divergence of the mechanism, which is at most delta(log a) for a >= 1 in both
directions. For a < 1 it is 1 - a + a H(1 / a) of the other direction. H is convex. So if a bound on H is known at some
points, the largest convex function that is piecewise linear between these points and nowhere above the bound at them is
a bound too. A convex function that decreases from 1 at 0 belongs to a pair of distributions (Zhu, Dong and Wang 2022),
whose losses are at its bends.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, ndtr

Reals = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


@dataclass(frozen=True)
class Losses:
    """Privacy losses with their probabilities. `infinite` is the probability of losses too large to integrate.

    No finite loss is above `highest`. Quadrature nodes come close to it only.
    """

    loss: Reals
    mass: Reals
    infinite: float
    highest: float

    @cached_property
    def log_mass(self) -> Reals:
        """The logarithm of `mass`: minus infinity where a density has underflowed."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.mass))


class Pair(Protocol):
    """Two distributions whose privacy loss can be integrated."""

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        """The nodes of a quadrature that leaves out a probability of at most exp(`log_tail`) on either side.

        With an `interval`, the nodes of a cell are between two adjacent multiples of it. Losses below `least` are
        raised to `least`, which keeps the result an upper bound.
        """
        ...


@dataclass(frozen=True)
class GaussianMixtures:
    """Two mixtures of Gaussians of standard deviation `std` on a line, along which their privacy loss increases.

    `upper` and `lower` are pairs (weight, mean). The weights of each mixture add up to 1.

    >>> pair = GaussianMixtures(1.0, upper=((1.0, 1.0),), lower=((1.0, 0.0),))
    >>> nodes = pair.losses(log_tail=-50.0)
    >>> round(float(nodes.mass @ nodes.loss), 9)  # the Kullback-Leibler divergence of N(1, 1) from N(0, 1)
    0.5
    """

    std: float
    upper: tuple[tuple[float, float], ...]
    lower: tuple[tuple[float, float], ...]

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        return self.losses_between(-math.inf, math.inf, log_tail, interval, least)

    def losses_between(self, begin: float, end: float, log_tail: float, interval: float | None, least: float) -> Losses:
        """The losses of the draws between `begin` and `end`. An end at which the range stops leaves nothing out."""
        # A rare component can be cut off closer to its mean, which leaves out the same probability.
        reach = [self.std * math.sqrt(2 * max(0.0, math.log(weight) - log_tail)) for weight, _ in self.upper]
        lowest = min(mean - far for (_, mean), far in zip(self.upper, reach, strict=True))
        highest = max(mean + far for (_, mean), far in zip(self.upper, reach, strict=True))
        low, high = min(max(lowest, begin), end), max(min(highest, end), begin)
        cells = np.linspace(low, high, 2 + math.ceil((high - low) / self._smooth_width))
        if interval is not None:
            cells = np.union1d(cells, self._where_loss_is_a_multiple(interval, cells, least))
        middle, half = (cells[1:] + cells[:-1]) / 2, np.diff(cells) / 2
        x = (middle[:, None] + half[:, None] * _NODES).ravel()
        mass = self._density(x) * (half[:, None] * _WEIGHTS).ravel()
        # The probability below the range is moved up to its lower end, which can only increase the loss.
        below = self._probability_below(low) if low > begin else 0.0
        x, mass = np.append(x, low), np.append(mass, below)
        loss = np.maximum(self._loss(x), least)
        above = self._probability_above(high) if high < end else 0.0
        return Losses(loss, mass, above, highest=max(float(loss.max()), float(self._loss(np.array([high]))[0])))

    def _loss(self, x: Reals) -> Reals:
        return self._log_ratio(self.upper, x) - self._log_ratio(self.lower, x)

    def _log_ratio(self, mixture: tuple[tuple[float, float], ...], x: Reals) -> Reals:
        """log(mixture / N(0, std)): accurate if it is close to 0, and finite if the ratio overflows."""
        weight = np.array([[weight] for weight, _ in mixture])
        exponent = np.array([(mean * x - mean**2 / 2) / self.std**2 for _, mean in mixture])
        above_one = (weight * np.expm1(np.minimum(exponent, 1.0))).sum(axis=0)
        top = exponent.max(axis=0)
        close = (top <= 1) & (above_one > -0.5)
        far = top + np.log((weight * np.exp(exponent - top)).sum(axis=0))
        return np.where(close, np.log1p(np.where(close, above_one, 0.0)), far)

    def _slope(self, x: Reals) -> Reals:
        return (self._mean_at(self.upper, x) - self._mean_at(self.lower, x)) / self.std**2

    def _mean_at(self, mixture: tuple[tuple[float, float], ...], x: Reals) -> Reals:
        """The expected mean of the component from which a draw at `x` comes."""
        exponent = np.array([(mean * x - mean**2 / 2) / self.std**2 for _, mean in mixture])
        weight = np.array([[weight] for weight, _ in mixture]) * np.exp(exponent - exponent.max(axis=0))
        return np.asarray(np.array([mean for _, mean in mixture]) @ weight / weight.sum(axis=0))

    def _where_loss_is_a_multiple(self, interval: float, cells: Reals, least: float) -> Reals:
        # A cut need not be exact: splitting a node between two multiples keeps its probability under both distributions
        # (see `LossGrid.of`), so that an error of 1/1000 of an interval costs 1e-6 of what the grid itself costs.
        losses = np.maximum.accumulate(self._loss(cells))
        first = math.ceil(max(losses[0], least) / interval)
        targets = np.arange(first, math.floor(losses[-1] / interval) + 1) * interval
        right = np.searchsorted(losses, targets).clip(1, len(cells) - 1)
        x = np.interp(targets, losses, cells)
        for _ in range(5):
            slope = np.maximum(self._slope(x), 1e-300)
            x = np.clip(x - (self._loss(x) - targets) / slope, cells[right - 1], cells[right])
        return x

    def _density(self, x: Reals) -> Reals:
        shape = sum(weight * np.exp(-(((x - mean) / self.std) ** 2) / 2) for weight, mean in self.upper)
        return np.asarray(shape / (self.std * math.sqrt(2 * math.pi)))

    def _probability_below(self, x: float) -> float:
        return float(sum(weight * ndtr((x - mean) / self.std) for weight, mean in self.upper))

    def _probability_above(self, x: float) -> float:
        return float(sum(weight * ndtr((mean - x) / self.std) for weight, mean in self.upper))

    @cached_property
    def _smooth_width(self) -> float:
        # Six nodes integrate to about 1e-13 if neither the Gaussian nor the ratio changes much within a cell.
        farthest = max(abs(mean) for _, mean in (*self.upper, *self.lower))
        return min(self.std / 4, self.std**2 / (2 * farthest))


@dataclass(frozen=True)
class FixedSizeBatches:
    """The dominating pair of Gaussian noise on a batch of fixed size, under replace-one.

    `std` is the standard deviation of the noise, in units of the distance of two batches with one unit replaced. `rate`
    is the probability that a unit is in the batch.

    Theorem (Zhu, Dong and Wang 2022, Theorem 11 (2); Balle, Barthe and Gaboardi 2018). Let H(a) be the hockey-stick
    divergence of N(1, std) from N(0, std), which bounds that of two batches with one unit replaced, for every a >= 0.
    Let the batch be a uniform subset of fixed size. Then the divergence of neighbors is at most that of
    `rate` N(1) + (1 - `rate`) N(0) from N(0) for a >= 1, and that of N(0) from `rate` N(-1) + (1 - `rate`) N(0) for
    a <= 1.

    Proof. Let A be the output for batches without the unit, B with it and C with its replacement. The outputs for the
    two datasets are the mixtures (1 - rate) A + rate B and (1 - rate) A + rate C. Replacing a random member by the unit
    turns a uniform batch without it into a uniform batch with it. So A, B and C are mixtures of pairs with one unit
    replaced, and H bounds all their divergences. By advanced joint convexity, the divergences of the outputs are at
    most rate H(1 + (a - 1) / rate) for a >= 1, which is the divergence of the first pair. For a < 1, each divergence
    is 1 - a plus a times the reverse divergence at 1 / a. In reverse, neighbors are neighbors too, and the second pair
    is the first.

    Neither pair alone dominates, which composition needs (Lebeda et al. 2024). The function of a that consists of both
    is convex: at 1 its slope jumps by (1 - rate) TV, where TV is the total variation of N(1) and N(0). So it belongs to
    a pair of distributions, which is this one. Its losses are those of the first pair above 0, those of the second
    below 0, and an atom of probability (1 - rate) TV at 0. The reverse pair is equal to it.

    >>> nodes = FixedSizeBatches(1.0, rate=0.1).losses(log_tail=-50.0)
    >>> round(float(nodes.mass.sum()), 12), round(float(nodes.mass @ np.exp(-nodes.loss)), 12)
    (1.0, 1.0)
    """

    std: float
    rate: float

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        absent, joined = ((1.0, 0.0),), ((1 - self.rate, 0.0), (self.rate, 1.0))
        left = tuple((weight, -mean) for weight, mean in joined)
        # The two densities of a pair are equal halfway between the means.
        gain = GaussianMixtures(self.std, joined, absent).losses_between(0.5, math.inf, log_tail, interval, least)
        fall = GaussianMixtures(self.std, absent, left).losses_between(-math.inf, -0.5, log_tail, interval, least)
        atom = (1 - self.rate) * float(erf(0.5 / (self.std * math.sqrt(2))))
        loss = np.concatenate([gain.loss, fall.loss, [max(0.0, least)]])
        mass = np.concatenate([gain.mass, fall.mass, [atom]])
        return Losses(loss, mass, gain.infinite, gain.highest)


@dataclass(frozen=True)
class Laplaces:
    """The pair of Laplace noise of the given scale, for a unit that joins with probability `rate`.

    If `present_above`, `upper` is the distribution for data with the unit, otherwise `lower` is.
    """

    scale: float
    rate: float
    present_above: bool

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        # Outside of [0, 1] the ratio is constant: two atoms. Between them it is exp((2 x - 1) / scale).
        ends = self._loss(np.array([0.0, 1.0]))
        step = interval or abs(ends[1] - ends[0]) / 64
        multiples = np.arange(math.ceil(max(ends.min(), least) / step), math.floor(ends.max() / step) + 1) * step
        cuts = [x for x in self._inverse(multiples) if 0 < x < 1]
        cells = np.unique(np.concatenate([np.linspace(0, 1, 65 + math.ceil(8 / self.scale)), cuts]))
        middle, half = (cells[1:] + cells[:-1]) / 2, np.diff(cells) / 2
        x = (middle[:, None] + half[:, None] * _NODES).ravel()
        width = (half[:, None] * _WEIGHTS).ravel() / (2 * self.scale)
        absent, present = np.exp(-x / self.scale) * width, np.exp((x - 1) / self.scale) * width
        far = math.exp(-1 / self.scale)
        absent, present = np.append(absent, [0.5, far / 2]), np.append(present, [far / 2, 0.5])
        mass = (1 - self.rate) * absent + self.rate * present if self.present_above else absent
        loss = np.maximum(self._loss(np.append(x, [0.0, 1.0])), least)
        return Losses(loss, mass, 0.0, float(loss.max()))

    def _loss(self, x: Reals) -> Reals:
        loss = np.log1p(self.rate * np.expm1((2 * x - 1) / self.scale))
        return loss if self.present_above else -loss

    def _inverse(self, loss: Reals) -> Reals:
        present = loss if self.present_above else -loss
        inside = np.maximum(np.expm1(present) / self.rate, -1 + 1e-300)
        return np.asarray((self.scale * np.log1p(inside) + 1) / 2)


@dataclass(frozen=True)
class EitherPair:
    """One of two pairs, chosen at random with P(`first`) = `weight`. The choice is public."""

    weight: float
    first: Pair
    second: Pair

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        a, b = self.first.losses(log_tail, interval, least), self.second.losses(log_tail, interval, least)
        mass = np.concatenate([self.weight * a.mass, (1 - self.weight) * b.mass])
        infinite = self.weight * a.infinite + (1 - self.weight) * b.infinite
        return Losses(np.concatenate([a.loss, b.loss]), mass, infinite, max(a.highest, b.highest))


@dataclass(frozen=True)
class ProfilePair:
    """The pair of a privacy curve, given its deltas at rising `epsilons` of at least 0. The reverse pair is equal.

    >>> nodes = ProfilePair(epsilons=(0.0, 1.0), deltas=(0.5, 0.0)).losses(log_tail=-50.0)
    >>> round(float(nodes.mass.sum()), 12), round(float(nodes.mass @ np.maximum(-np.expm1(-nodes.loss), 0)), 9)
    (1.0, 0.462117157)
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def losses(self, log_tail: float, interval: float | None = None, least: float = -math.inf) -> Losses:
        loss, mass = self._bends()
        # Symmetry: a draw with some loss has minus this loss when the two distributions are exchanged.
        both = np.concatenate([loss, -loss[loss > 0]])
        mass = np.concatenate([mass, (mass * np.exp(-loss))[loss > 0]])
        both = np.maximum(both, least)
        return Losses(both, mass, self.deltas[-1], float(both.max()))

    def _bends(self) -> tuple[Reals, Reals]:
        """The losses of at least 0 and their probabilities."""
        a, h = np.exp(np.array(self.epsilons)), np.array(self.deltas)
        hull: list[int] = []  # indices of the lower convex hull of the points, built from the right
        for point in range(len(a) - 1, -1, -1):
            while len(hull) > 1 and _slope(a, h, point, hull[-1]) >= _slope(a, h, hull[-1], hull[-2]):
                hull.pop()
            hull.append(point)
        # Left of the first point is the line to its mirror image at 1 / a, of slope (h - 1) / (a + 1), which must be
        # steeper than the first piece of the hull.
        while len(hull) > 1 and _slope(a, h, hull[-1], hull[-2]) < (h[hull[-1]] - 1) / (a[hull[-1]] + 1):
            hull.pop()
        hull.reverse()
        slopes = np.append([_slope(a, h, *each) for each in itertools.pairwise(hull)], 0.0)
        before = np.append((h[hull[0]] - 1) / (a[hull[0]] + 1), slopes[:-1])
        mass = np.maximum(a[hull] * (slopes - before), 0.0)
        if self.epsilons[hull[0]] == 0:
            mass[0] *= 2  # this point is its own mirror image
        return np.array(self.epsilons)[hull], mass


def _slope(a: Reals, h: Reals, left: int, right: int) -> float:
    return float((h[right] - h[left]) / (a[right] - a[left]))
