"""Is optimised noise of the density that the event allows: its slope, its radii, its directions, its end?

The law of a step is computed anew from what was public before the step. Noise that was fitted to anything else, such as
the sum itself, does not follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from sordino.accounting import Adjacency
from sordino.optimized.block_norm import BlockNorm
from sordino.optimized.noise import OptimizedNoise
from sordino.run import Plan
from sordino.states import BoundedSum, Layout
from sordino.verification.noise_findings import SCALE, TAIL, ZeroStream, independence, last_bits
from sordino.verification.synthetic import Drawn
from sordino.verification.verdict import Finding, at_most, probable


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
    yield last_bits(values, [sqrt(float(law.expected_square().min())) for law in laws])
    yield _tail(plan, noise, drawn[0], layout, delta)


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


def _tail(plan: Plan, noise: OptimizedNoise, first: Drawn, layout: Layout, delta: float) -> Finding:
    """Where the exponentials end, by a stream of zero bytes, against the chance that a true one goes on from there."""
    at = replace(first.at, stream=ZeroStream(b""))
    total = BoundedSum(torch.zeros(layout.size, dtype=torch.float64), plan.clip.bound, layout)
    value, law = noise.add(total, at).value.numpy(), noise.law(plan.clip.bound, at).density
    block_of = law.block_of.numpy()
    radii = law.rates.numpy() * np.sqrt(np.bincount(block_of, value**2))
    end = float((radii / np.bincount(block_of)).min())
    shift = (2.0 if plan.adjacency is Adjacency.REPLACE_ONE else 1.0) / noise.noise_multiplier
    chance = plan.steps * (1 + exp(min(shift, 700.0))) * 2 * layout.size * exp(-end)
    return at_most(TAIL, "chance of meeting the generator's end", chance, (delta or 1e-15) / 1000)
