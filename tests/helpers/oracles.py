"""Independent high-precision computations for tests of the accountants. They share no code with them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mpmath as mp
import numpy as np
from scipy.special import ndtr

Mixture = Sequence[tuple[float, float]]


def hockey_stick(upper: Mixture, lower: Mixture, std: float, epsilon: float) -> float:
    """Computes the integral of (upper - exp(epsilon) * lower)+ for two mixtures on a line, by adaptive quadrature."""
    with mp.workdps(40):
        upper, lower = _of_total_weight_one(upper), _of_total_weight_one(lower)

        def density(mixture: Mixture, x: mp.mpf) -> mp.mpf:
            return mp.fsum(weight * mp.npdf(x, mean, std) for weight, mean in mixture)

        def excess(x: mp.mpf) -> mp.mpf:
            return density(upper, x) - mp.exp(epsilon) * density(lower, x)

        # The ratio is monotone on the line, so there is at most one point where the excess changes its sign.
        low, high = mp.mpf(-60 * std), mp.mpf(60 * std)
        if excess(high) <= 0:
            return 0.0
        for _ in range(160):
            middle = (low + high) / 2
            low, high = (low, middle) if excess(middle) > 0 else (middle, high)
        ends = [high, *(high + std * step for step in (0.5, 1, 2, 3, 5, 8, 12, 20, 40))]
        return float(mp.quad(excess, ends))


def _of_total_weight_one(mixture: Mixture) -> Mixture:
    """The mixture with its first weight corrected: as floats, 1 - q and q do not add up to 1."""
    others = [(mp.mpf(weight), mean) for weight, mean in mixture[1:]]
    return [(1 - mp.fsum(weight for weight, _ in others), mixture[0][1]), *others]


def allocation_hockey_stick(std: float, bins: int, epsilon: float, *, removing: bool) -> float:
    """Delta of one epoch of random allocation over two or three bins, by quadrature.

    All bins but one are on a fine grid. Over the last bin the integral is the price of an option on a log-normal value,
    which the Black-Scholes formula gives.
    """
    z = np.linspace(-10, 10 + 1 / std, 2001)
    weight = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    ratio = np.exp(z / std - 1 / (2 * std**2))
    others, weight = (ratio, weight) if bins == 2 else (ratio[:, None] + ratio, weight[:, None] * weight)
    strike = bins * np.exp(epsilon if removing else -epsilon) - others
    positive = np.maximum(strike, 1e-300)
    d = std * (1 / (2 * std**2) - np.log(positive))
    call = np.where(strike > 0, ndtr(d) - positive * ndtr(d - 1 / std), 1 - strike)
    excess = call if removing else np.exp(epsilon) * np.where(strike > 0, np.maximum(call - 1 + strike, 0), 0)
    return float((weight * excess).sum() / bins)


def epsilon_by_convolution(rate: float, std: float, steps: int, delta: float, *, upwards: bool) -> float:
    """Epsilon of Poisson sampling when a unit is removed, by direct convolution of losses rounded to a grid.

    Losses rounded down give a lower bound of epsilon, losses rounded up an upper bound. There is no Fourier transform,
    no exponential tilting and no connect-the-dots discretization.
    """
    interval, x = 6e-3, np.linspace(-12 * std, 1 + 12 * std, 200_001)
    loss = np.log1p(rate * np.expm1((x - 0.5) / std**2))
    # Differences are taken in the smaller of the two tails, which avoids cancellation.
    mass = (1 - rate) * _normal_differences(x / std) + rate * _normal_differences((x - 1) / std)
    index = np.ceil(loss[1:] / interval) if upwards else np.floor(loss[:-1] / interval)
    lowest = int(index.min())
    single = np.bincount((index - lowest).astype(int), mass)
    total = single
    for _ in range(steps - 1):
        total = np.convolve(total, single)
    losses = (steps * lowest + np.arange(len(total))) * interval
    low, high = 0.0, float(losses[-1])
    for _ in range(60):
        middle = (low + high) / 2
        above = losses > middle
        found = float((-np.expm1(middle - losses[above]) * total[above]).sum())
        low, high = (low, middle) if found <= delta else (middle, high)
    return high


def _normal_differences(x: np.ndarray) -> np.ndarray:
    return np.where(x[1:] > 0, ndtr(-x[:-1]) - ndtr(-x[1:]), ndtr(x[1:]) - ndtr(x[:-1]))


def moment_by_partitions(order: int, bins: int, std: float) -> float:
    """Computes log E[(mean of y_t)^order] as a sum over all allocations of `order` draws to the bins."""
    with mp.workdps(50):
        total = mp.mpf(0)
        for counts in itertools.product(range(order + 1), repeat=bins):
            if sum(counts) == order:
                ways = mp.factorial(order) / mp.fprod(mp.factorial(count) for count in counts)
                total += ways * mp.exp(sum(count * (count - 1) for count in counts) / (2 * mp.mpf(std) ** 2))
        return float(mp.log(total / mp.mpf(bins) ** order))


def poisson_renyi(rate: float, std: float, order: float) -> float:
    """The Renyi divergence of the Poisson-sampled Gaussian, by quadrature."""
    with mp.workdps(40):
        rate, std, order = mp.mpf(rate), mp.mpf(std), mp.mpf(order)

        def integrand(x: mp.mpf) -> mp.mpf:
            return mp.npdf(x, 0, std) * (1 + rate * mp.expm1((x - 0.5) / std**2)) ** order

        # The trapezoid rule is exact to many digits for an analytic integrand that vanishes at both ends.
        step = min(std, std**2) / 12
        points = int((order + 30 * std) / step)
        return float(mp.log(step * mp.fsum(integrand(-15 * std + step * k) for k in range(points))) / (order - 1))


def two_point_delta(epsilon: float, rate: float, steps: int, at: float) -> float:
    """Delta of `steps` steps of randomized response on a unit that is sampled with probability `rate`.

    Sums over all counts, in both directions, the probability with the unit minus exp(at) times the probability without
    it (or the reverse), and returns the larger.
    """
    with mp.workdps(60):
        lie = 1 / (1 + mp.exp(epsilon))
        present, absent = rate * (1 - lie) + (1 - mp.mpf(rate)) * lie, lie

        def probability(p: mp.mpf, k: int) -> mp.mpf:
            return mp.binomial(steps, k) * p**k * (1 - p) ** (steps - k)

        def hockey_stick(upper: mp.mpf, lower: mp.mpf) -> mp.mpf:
            excess = (probability(upper, k) - mp.exp(at) * probability(lower, k) for k in range(steps + 1))
            return mp.fsum(each for each in excess if each > 0)

        return float(max(hockey_stick(present, absent), hockey_stick(absent, present)))


def two_point_renyi(epsilon: float, rate: float, order: float) -> tuple[float, float]:
    """The Renyi divergences of one such step in both directions, by definition."""
    with mp.workdps(60):
        lie, order = 1 / (1 + mp.exp(epsilon)), mp.mpf(order)
        present = rate * (1 - lie) + (1 - mp.mpf(rate)) * lie

        def divergence(p: mp.mpf, q: mp.mpf) -> float:
            return float(mp.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1))

        return divergence(present, lie), divergence(lie, present)
