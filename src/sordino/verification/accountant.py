"""Does the path from sampler and noise to epsilon give known values? Intervals are rigorous two-sided bounds.

Source: numerical composition of the privacy loss with error bars (Gopi, Lee and Wutschitz 2021, error 0.01), and the
closed form of the Gaussian mechanism (Balle and Wang 2018).
"""

from __future__ import annotations

from collections.abc import Iterator

from sordino.accounting import Adjacency, privacy_of
from sordino.kernel.noise import Gaussian
from sordino.kernel.sampling import Poisson, Sampler, Shuffled
from sordino.verification.verdict import Finding

NAME = "accountant golden values"

_GOLDEN: tuple[tuple[Sampler, float, float, float, float], ...] = (
    # sampler, noise multiplier, delta, lowest and highest epsilon that are true
    (Poisson(256 / 60_000, 14_062), 1.1, 1e-5, 2.371456, 2.391744),
    (Poisson(0.01, 10_000), 4.0, 1e-5, 0.936809, 0.956936),
    (Poisson(0.004, 1_000), 0.8, 1e-5, 1.273898, 1.294200),
    (Poisson(1.0, 100), 10.0, 1e-5, 4.377178, 4.377179),
    (Shuffled(50, 4), 2.0, 1e-5, 4.377178, 4.377179),
    (Shuffled(7, 100, Adjacency.REPLACE_ONE), 20.0, 1e-5, 4.377178, 4.377179),
)


def compare() -> Iterator[Finding]:
    """Each golden plan's epsilon lies in its interval."""
    for sampler, multiplier, delta, low, high in _GOLDEN:
        event = sampler.compose(Gaussian(multiplier).event, sampler.steps)
        epsilon = privacy_of(event, sampler.adjacency).epsilon(delta)
        yield Finding(
            NAME,
            f"epsilon of {sampler.steps} {sampler.name} steps at noise {multiplier:g}",
            epsilon,
            f"[{low}, {high}]",
            low <= epsilon <= high,
        )
