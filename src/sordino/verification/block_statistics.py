"""Is optimised noise of the density that the event allows: its slope, its radii, its directions, its end?

The law of a step is computed anew from what was public before the step. Noise that was fitted to anything else, such as
the sum itself, does not follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, exp, log2

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from sordino.accounting import Adjacency
from sordino.kernel.lattice import spacings_of
from sordino.kernel.noise import NoiseAt
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.states import BoundedSum, Layout
from sordino.kernel.step import Plan
from sordino.optimized_noise.block_norm import BlockNorm
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed
from sordino.verification.noise_findings import SCALE, TAIL, LowestStream, independence, last_bits, resolution
from sordino.verification.synthetic import Drawn
from sordino.verification.verdict import Finding, at_most, probable

_FEW, _FRACTION, _ROOT_OF_DRAWS = 16, 0.685, 1600


def examine(
    plan: Plan, noise: OptimizedNoise, drawn: Sequence[Drawn], layout: Layout, *, delta: float
) -> Iterator[Finding]:
    laws = [noise.law(plan.clip.bound, each.at).density for each in drawn]
    values = torch.stack([each.noise for each in drawn]).double().numpy()
    steepest = max(law.lipschitz for law in laws) * plan.clip.bound
    yield at_most(SCALE, "slope of the log-density times the bound", steepest, 1 / noise.noise_multiplier)
    yield from _radii_and_directions(values, laws, layout)
    heads, number = int((values > 0).sum()), int((values != 0).sum())
    yield probable(SCALE, "fair signs", float(stats.binomtest(heads, number).pvalue))
    yield from independence(np.sign(values))  # signs are independent, whatever the blocks
    yield last_bits(values, np.stack([spacings_of(law.expected_square().sqrt().numpy()) for law in laws]))
    yield _resolution(noise, plan.clip.bound)
    yield _tail(plan, noise, delta)


def _radii_and_directions(values: NDArray[np.float64], laws: Sequence[BlockNorm], layout: Layout) -> Iterator[Finding]:
    """Parameter by parameter, so that noise which is missing on a small one is seen."""
    starts = np.cumsum((0, *layout.sizes))
    for name, start, stop in zip(layout.names, starts[:-1], starts[1:], strict=True):
        if start == stop:
            continue
        radii, directions = [], []
        for row, law in zip(values, laws, strict=True):
            block_of, rates = law.block_of.numpy(), law.rates.numpy()
            sizes, squares = np.bincount(block_of), np.bincount(block_of, row**2)
            blocks, first = np.unique(block_of[start:stop], return_index=True)
            radii.append(stats.gamma.cdf(rates[blocks] * np.sqrt(squares[blocks]), sizes[blocks]))
            several = sizes[blocks] > 1
            of_one = row[start + first[several]] ** 2
            blocks = blocks[several]
            share = of_one / np.maximum(squares[blocks], np.finfo(float).tiny)
            directions.append(stats.beta.cdf(share, 0.5, (sizes[blocks] - 1) / 2))
        yield probable(SCALE, f"radii on {name}", _uniform(radii))
        if any(map(len, directions)):
            yield probable(SCALE, f"directions on {name}", _uniform(directions))


def _uniform(parts: list[NDArray[np.float64]]) -> float:
    return float(stats.kstest(np.concatenate(parts), "uniform").pvalue)


def _resolution(noise: OptimizedNoise, bound: float) -> Finding:
    """Resolution of the directions: noise over the standard deviations drawn for it is a vector of normals."""
    # With equal weights the standard deviation is multiplier * bound * sqrt(size + 1); between two powers of two, the
    # numbers of float32 in neighbouring cells differ most.
    size = round(
        (
            _FRACTION
            * 2 ** ceil(log2(_ROOT_OF_DRAWS * noise.noise_multiplier * bound / _FRACTION))
            / (noise.noise_multiplier * bound)
        )
        ** 2
    )
    equal = replace(noise, weights=Fixed(torch.ones(size)))
    value, scales, spacings = _drawn_from(equal, bound, Key.from_seed(0).stream("noise"), size)
    return resolution(value, scales, spacings)


def _tail(plan: Plan, noise: OptimizedNoise, delta: float) -> Finding:
    """Where the normals end, made visible by their rarest draw, against the chance that true ones go on from there."""
    few = replace(noise, weights=Fixed(torch.ones(_FEW)))
    value, scales, _ = _drawn_from(few, plan.clip.bound, LowestStream(b""), _FEW)
    end = float(np.abs(value / scales).max())
    shift = (2.0 if plan.adjacency is Adjacency.REPLACE_ONE else 1.0) / noise.noise_multiplier
    chance = plan.steps * (1 + exp(min(shift, 700.0))) * 2 * float(stats.norm.sf(end))
    return at_most(TAIL, "chance of meeting the generator's end", chance, (delta or 1e-15) / 1000)


def _drawn_from(
    noise: OptimizedNoise, bound: float, stream: Stream, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A release of nobody, the standard deviations that were drawn for it, and its lattice."""
    layout = Layout(("probe",), ((size,),))
    at = NoiseAt(stream, 0, noise.init(layout))
    density = noise.law(bound, at).density
    value = noise.add(BoundedSum.of_nobody(bound, layout), at).value.numpy()
    spacings = spacings_of(density.expected_square().sqrt().numpy())
    return value, density.scales(stream, step=0).of(slice(0, size)), spacings
