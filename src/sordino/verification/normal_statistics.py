"""Is normal noise of the standard deviation that the event says, on every parameter, and does it go on far enough?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import frexp, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from sordino.accounting import Adjacency
from sordino.kernel.lattice import spacing_of
from sordino.kernel.noise import NoiseAt, NormalNoise
from sordino.kernel.randomness import Key
from sordino.kernel.states import BoundedSum, Layout
from sordino.kernel.step import Plan
from sordino.verification.noise_findings import SCALE, TAIL, LowestStream, independence, last_bits, resolution
from sordino.verification.synthetic import Drawn
from sordino.verification.verdict import Finding, at_most, probable

_FRACTION, _DRAWS_FOR_RESOLUTION = 0.685, 1 << 22  # float32 is seen from 1.8 million draws on with chance 1/2


def examine(
    plan: Plan, noise: NormalNoise, drawn: Sequence[Drawn], layout: Layout, *, delta: float
) -> Iterator[Finding]:
    values = torch.stack([each.noise for each in drawn]).double().numpy()
    noise_std = noise.std(plan.clip.bound)
    yield from _scale_and_shape(values / noise_std, layout)
    yield from independence(values / noise_std)
    yield last_bits(values, np.full(len(values), spacing_of(noise_std))[:, None])
    yield _resolution(noise, plan.clip.bound)
    yield _tail(plan, noise_std, delta)


def _scale_and_shape(standard: NDArray[np.float64], layout: Layout) -> Iterator[Finding]:
    starts = np.cumsum((0, *layout.sizes))
    for name, start, stop in zip(layout.names, starts[:-1], starts[1:], strict=True):
        block = standard[:, start:stop].ravel()
        if block.size:
            yield probable(SCALE, f"variance on {name}", _chi_square(block))
    for step, row in enumerate(standard):
        yield probable(SCALE, f"variance at step {step}", _chi_square(row))
    everything = standard.ravel()
    score = abs(float(everything.mean())) * sqrt(everything.size)
    yield probable(SCALE, "mean", 2 * float(stats.norm.sf(score)))
    yield probable(SCALE, "normal shape", float(stats.kstest(everything, "norm").pvalue))


def _resolution(noise: NormalNoise, bound: float) -> Finding:
    """Resolution at a standard deviation between two powers of two, where counts in neighbouring cells differ."""
    fraction, _ = frexp(noise.std(bound))
    other = noise.with_multiplier(_FRACTION / fraction * noise.std(bound) / bound)
    assert isinstance(other, NormalNoise)
    size = _DRAWS_FOR_RESOLUTION
    total = BoundedSum.of_nobody(bound, Layout(("probe",), ((size,),)))
    value = other.add(total, NoiseAt(Key.from_seed(0).stream("noise"), 0)).value.numpy()
    return resolution(value, other.std(bound), spacing_of(other.std(bound)))


def _tail(plan: Plan, noise_std: float, delta: float) -> Finding:
    """Where the generator ends, made visible by its rarest draw, against where the theorem needs it to go on.

    No sample is large enough to see this: torch's float32 normals end at 5.77 and pass every test above.
    """
    end = generator_end(plan, noise_std)
    shift = (2.0 if plan.adjacency is Adjacency.REPLACE_ONE else 1.0) * plan.clip.bound / noise_std
    chance = float(plan.steps * stats.norm.sf(end - shift))
    return at_most(TAIL, "chance of meeting the generator's end", chance, delta / 1000)


def generator_end(plan: Plan, noise_std: float) -> float:
    """The largest draw, in standard deviations."""
    layout = Layout(("probe",), ((64,),))
    total = BoundedSum.of_nobody(plan.clip.bound, layout)
    return float(plan.noise.add(total, NoiseAt(LowestStream(b""), 0)).value.abs().max()) / noise_std


def _chi_square(standard: NDArray[np.float64]) -> float:
    """Two-sided p-value of the sum of squares."""
    square = float((standard**2).sum())
    return 2 * min(float(stats.chi2.cdf(square, standard.size)), float(stats.chi2.sf(square, standard.size)))
