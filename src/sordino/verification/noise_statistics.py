"""Is the noise what the event says: its scale on every parameter, its shape, its independence, its last bits, its end?

A release minus the sum it was made from is the noise, so the production path is looked at and nothing else. Each test
has a false-alarm rate of one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor, log2, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from sordino.accounting import Adjacency
from sordino.noise import LATTICE_BITS, NoiseAt
from sordino.randomness import Stream
from sordino.records import Records
from sordino.run import Plan
from sordino.states import BoundedSum, Layout
from sordino.verification.synthetic import encoded_layout, fresh_run, noise_of, ordinary, undecoded, with_poisson
from sordino.verification.verdict import Finding, at_most, probable

SCALE, INDEPENDENCE, TAIL = "noise scale and shape", "noise independence", "noise tail"
_UNITS, _RATE = 12, 0.15  # batches of nobody to about five, so that a scale that follows the batch is seen
_DRAWS, _FEWEST_STEPS, _MOST_STEPS = 40_000, 8, 400
_LAST_BITS = 4


def examine(plan: Plan, model: nn.Module, records: Records, *, seed: int, delta: float) -> Iterator[Finding]:
    """The noise of many steps over batches of different sizes, the empty one included."""
    steps = min(_MOST_STEPS, max(_FEWEST_STEPS, ceil(_DRAWS / Layout.of(model).size)))
    watched = undecoded(with_poisson(plan, rate=_RATE, steps=steps))
    run = fresh_run(watched, model, ordinary(records, _UNITS), seed=seed)
    noise = torch.stack(list(noise_of(run))).double().numpy()
    noise_std = plan.noise.std(plan.clip.bound)
    yield from _scale_and_shape(noise / noise_std, encoded_layout(run))
    yield from _independence(noise / noise_std)
    yield _last_bits(noise, noise_std)
    yield from _tail(plan, noise_std, delta)


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


def _independence(standard: NDArray[np.float64]) -> Iterator[Finding]:
    """Steps, and halves of a step, are uncorrelated; the largest of k correlations is judged with a factor k."""
    pairs = [(standard[i], standard[j]) for i in range(len(standard)) for j in range(i)]
    yield probable(INDEPENDENCE, "correlation of two steps", _smallest_p_value(pairs))
    half = standard.shape[1] // 2
    if half:
        halves = [(row[:half], row[half : 2 * half]) for row in standard]
        yield probable(INDEPENDENCE, "correlation within a step", _smallest_p_value(halves))


def _last_bits(noise: NDArray[np.float64], noise_std: float) -> Finding:
    """The last bits on the lattice are uniform. A coarser generator (float16) leaves them at zero."""
    spacing = 2.0 ** (floor(log2(noise_std)) - LATTICE_BITS)
    residues = np.mod(np.round(noise / spacing), 2**_LAST_BITS).astype(int).ravel()
    counts = np.bincount(residues, minlength=2**_LAST_BITS)
    return probable(SCALE, "uniform last bits", float(stats.chisquare(counts).pvalue))


def _tail(plan: Plan, noise_std: float, delta: float) -> Iterator[Finding]:
    """Where the generator ends, made visible by a stream of zero bytes, against where the theorem needs it to go on.

    No sample is large enough to see this: torch's float32 normals end at 5.77 and pass every test above.
    """
    layout = Layout(("probe",), ((64,),))
    total = BoundedSum(torch.zeros(64, dtype=torch.float64), plan.clip.bound, layout)
    end = float(plan.noise.add(total, NoiseAt(_ZeroStream(b""), 0)).value.abs().max()) / noise_std
    shift = (2.0 if plan.adjacency is Adjacency.REPLACE_ONE else 1.0) * plan.clip.bound / noise_std
    chance = float(plan.steps * stats.norm.sf(end - shift))
    yield at_most(TAIL, "chance of meeting the generator's end", chance, delta / 1000)


class _ZeroStream(Stream):
    """Every word is zero, the one draw that reaches the end of the tail."""

    def words(self, number: int, *, step: int, block: int = 0) -> NDArray[np.uint64]:
        return np.zeros(number, np.uint64)


def _smallest_p_value(pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float:
    scores = [abs(float(left @ right)) / sqrt(len(left)) for left, right in pairs]
    return min(1.0, len(scores) * 2 * float(stats.norm.sf(max(scores)))) if scores else 1.0


def _chi_square(standard: NDArray[np.float64]) -> float:
    """Two-sided p-value of the sum of squares."""
    square = float((standard**2).sum())
    return 2 * min(float(stats.chi2.cdf(square, standard.size)), float(stats.chi2.sf(square, standard.size)))
