"""Statistical tests of the noise of a plan: scale, shape, independence, last bits and tail.

A release minus its sum is the noise, so the tests see the noise of the production code. Each test has a false-alarm
rate of 1e-6.

* All noise (`independence`, `last_bits`, `resolution`): steps are independent, and the last bits are uniform.
* Normal noise (`examine_normal_noise`): it has the standard deviation of the event on each parameter, and its tail is
  long enough.
* Optimized noise (`examine_block_noise`): it has the density that the event allows, by its slope, radii, directions and
  tail. The density of a step is computed again from what was public before the step. Noise that was fitted to anything
  else, such as the sum itself, does not have this density.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, frexp, log2, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from sordino.accounting import Adjacency
from sordino.errors import UsageError
from sordino.kernel.lattice import Numbers, spacing_of, spacings_of
from sordino.kernel.noise import NoiseAt, NormalNoise
from sordino.kernel.randomness import Key, Stream
from sordino.kernel.records import Records
from sordino.kernel.states import BoundedSum, Layout
from sordino.kernel.step import Plan
from sordino.optimized_noise.block_norm import BlockNorm
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Fixed
from sordino.verification.synthetic import StepNoise, SyntheticRun, ordinary, undecoded, with_poisson
from sordino.verification.verdict import Finding, at_most, probable

SCALE, INDEPENDENCE, TAIL = "noise scale and shape", "noise independence", "noise tail"
_LAST_BITS = 4
_FRACTION_OF_FLOAT32 = 23
_OTHER_GRIDS = 4  # shifted grids of the same spacing, which give the counts that are expected at random


def independence(standard: NDArray[np.float64]) -> Iterator[Finding]:
    """Tests that steps, and halves of a step, are uncorrelated. The smallest of k p-values is multiplied by k."""
    steps, size = standard.shape
    between = (standard @ standard.T)[np.tril_indices(steps, -1)]
    yield probable(INDEPENDENCE, "correlation of two steps", _smallest_p_value(between, size))
    half = size // 2
    if half:
        within = np.einsum("ij,ij->i", standard[:, :half], standard[:, half : 2 * half])
        yield probable(INDEPENDENCE, "correlation within a step", _smallest_p_value(within, half))


def last_bits(noise: NDArray[np.float64], spacings: NDArray[np.float64]) -> Finding:
    """Tests that the last bits on the lattice are uniform. With a coarser generator (float16) they are zero."""
    residues = np.mod(np.round(noise / spacings), 2**_LAST_BITS).astype(int).ravel()
    counts = np.bincount(residues, minlength=2**_LAST_BITS)
    return probable(SCALE, "uniform last bits", float(stats.chisquare(counts).pvalue))


def resolution(noise: NDArray[np.float64], scales: Numbers, spacings: Numbers) -> Finding:
    """Tests whether noise divided by its scale was a float32 value before it was rounded to the lattice.

    The number of float32 values in a cell of the lattice depends on its position, for example 64 or 65. So an observer
    who knows the lattice could see from the counts whether a record moved the sum. The statistic is the log-likelihood
    of the counts.
    """
    cells, width = np.abs(np.round(noise / spacings)), spacings / scales
    low, high = (cells - 0.5) * width, (cells + 0.5) * width
    _, exponents = np.frexp(low)
    binade, step = np.ldexp(1.0, exponents - 1), np.ldexp(1.0, exponents - 1 - _FRACTION_OF_FLOAT32)
    inside = (cells > 0) & (high < 2 * binade)  # the spacing of float32 changes from one power of two to the next
    low, high = low[inside] / step[inside], high[inside] / step[inside]

    def log_ratios(offset: float) -> NDArray[np.float64]:
        counts = np.floor(high + offset) - np.floor(low + offset)
        return np.asarray(np.log(np.maximum(counts, 0.5) / (high - low)))

    expected = [log_ratios((1 + grid) / (1 + _OTHER_GRIDS)) for grid in range(_OTHER_GRIDS)]
    surplus = float(log_ratios(0.0).sum() - np.mean([each.sum() for each in expected]))
    spread = float(np.std(expected)) * sqrt(len(low) * (1 + 1 / _OTHER_GRIDS))
    return probable(SCALE, "noise finer than float32", float(stats.norm.sf(surplus / spread)) if spread else 1.0)


class LowestStream(Stream):
    """A stream whose words are zero and whose further words are one: a draw of probability 2^-128, far in the tail."""

    def words(self, number: int, *, step: int, block: int = 0, first: int = 0) -> NDArray[np.uint64]:
        return np.zeros(number, np.uint64)

    def named(self, name: str) -> Stream:
        return _Ones(b"") if name.startswith("further bits") else self


class _Ones(Stream):
    def words(self, number: int, *, step: int, block: int = 0, first: int = 0) -> NDArray[np.uint64]:
        return np.ones(number, np.uint64)


def _smallest_p_value(products: NDArray[np.float64], size: int) -> float:
    """The smallest p-value of sums of `size` products of independent values of variance 1, times the number of sums."""
    if not products.size:
        return 1.0
    return min(1.0, products.size * 2 * float(stats.norm.sf(np.abs(products).max() / sqrt(size))))


_NORMAL_FRACTION, _DRAWS_FOR_RESOLUTION = 0.685, 1 << 22  # 1.8 million draws detect float32 with probability 1/2


def examine_normal_noise(
    plan: Plan, noise: NormalNoise, drawn: Sequence[StepNoise], layout: Layout, *, delta: float
) -> Iterator[Finding]:
    """Tests normal noise against the standard deviation of its event."""
    values = torch.stack([each.noise for each in drawn]).double().numpy()
    noise_std = noise.std(plan.clip.bound)
    yield from _scale_and_shape(values / noise_std, layout)
    yield from independence(values / noise_std)
    yield last_bits(values, np.full(len(values), spacing_of(noise_std))[:, None])
    yield _normal_tail(plan, noise_std, delta)
    yield _normal_resolution(noise, plan.clip.bound)


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


def _normal_resolution(noise: NormalNoise, bound: float) -> Finding:
    """Tests resolution at a standard deviation between two powers of two, where counts in adjacent cells differ."""
    fraction, _ = frexp(noise.std(bound))
    other = noise.with_multiplier(_NORMAL_FRACTION / fraction * noise.std(bound) / bound)
    assert isinstance(other, NormalNoise)
    size = _DRAWS_FOR_RESOLUTION
    total = BoundedSum.of_nobody(bound, Layout(("probe",), ((size,),)))
    value = other.add(total, NoiseAt(Key.from_seed(0).stream("noise"), 0)).value.numpy()
    return resolution(value, other.std(bound), spacing_of(other.std(bound)))


def _normal_tail(plan: Plan, noise_std: float, delta: float) -> Finding:
    """Tests that the largest draw of the generator, made by its rarest words, is large enough for the theorem.

    No sample is large enough for this: torch's float32 normals end at 5.77 and pass all tests above.
    """
    end = generator_end(plan, noise_std)
    shift = (2.0 if plan.adjacency is Adjacency.REPLACE_ONE else 1.0) * plan.clip.bound / noise_std
    probability = float(plan.steps * stats.norm.sf(end - shift))
    return at_most(TAIL, "probability of a draw beyond the generator's range", probability, delta / 1000)


def generator_end(plan: Plan, noise_std: float) -> float:
    """The largest draw of the noise, in standard deviations."""
    layout = Layout(("probe",), ((64,),))
    total = BoundedSum.of_nobody(plan.clip.bound, layout)
    return float(plan.noise.add(total, NoiseAt(LowestStream(b""), 0)).value.abs().max()) / noise_std


def _chi_square(standard: NDArray[np.float64]) -> float:
    """Two-sided p-value of the sum of squares."""
    square = float((standard**2).sum())
    return 2 * min(float(stats.chi2.cdf(square, standard.size)), float(stats.chi2.sf(square, standard.size)))


_FEW, _BLOCK_FRACTION, _ROOT_OF_DRAWS = 16, 0.685, 1600


def examine_block_noise(
    plan: Plan, noise: OptimizedNoise, drawn: Sequence[StepNoise], layout: Layout, *, delta: float
) -> Iterator[Finding]:
    """Tests optimized noise against the density of each step."""
    laws = [noise.law(plan.clip.bound, each.at).density for each in drawn]
    values = torch.stack([each.noise for each in drawn]).double().numpy()
    steepest = max(law.lipschitz for law in laws) * plan.clip.bound
    yield at_most(SCALE, "slope of the log-density times the bound", steepest, 1 / noise.noise_multiplier)
    yield from _radii_and_directions(values, laws, layout)
    positive, number = int((values > 0).sum()), int((values != 0).sum())
    yield probable(SCALE, "fair signs", float(stats.binomtest(positive, number).pvalue))
    yield from independence(np.sign(values))  # signs are independent for all blocks
    yield last_bits(values, np.stack([spacings_of(law.expected_square().sqrt().numpy()) for law in laws]))
    yield _block_tail(plan, noise, delta)
    yield _block_resolution(noise, plan.clip.bound)


def _radii_and_directions(values: NDArray[np.float64], laws: Sequence[BlockNorm], layout: Layout) -> Iterator[Finding]:
    """Tests radii and directions of each parameter, so that noise which is missing on a small parameter is found."""
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
            fraction = of_one / np.maximum(squares[blocks], np.finfo(float).tiny)
            directions.append(stats.beta.cdf(fraction, 0.5, (sizes[blocks] - 1) / 2))
        yield probable(SCALE, f"radii on {name}", _uniform(radii))
        if any(map(len, directions)):
            yield probable(SCALE, f"directions on {name}", _uniform(directions))


def _uniform(parts: list[NDArray[np.float64]]) -> float:
    return float(stats.kstest(np.concatenate(parts), "uniform").pvalue)


def _block_resolution(noise: OptimizedNoise, bound: float) -> Finding:
    """Tests resolution of the directions: noise divided by the drawn standard deviations is a vector of normals."""
    # With equal weights the standard deviation is multiplier * bound * sqrt(size + 1). Between two powers of two, the
    # numbers of float32 values in adjacent cells differ most.
    size = round(
        (
            _BLOCK_FRACTION
            * 2 ** ceil(log2(_ROOT_OF_DRAWS * noise.noise_multiplier * bound / _BLOCK_FRACTION))
            / (noise.noise_multiplier * bound)
        )
        ** 2
    )
    equal = replace(noise, weights=Fixed(torch.ones(size)))
    value, scales, spacings = _drawn_from(equal, bound, Key.from_seed(0).stream("noise"), size)
    return resolution(value, scales, spacings)


def _block_tail(plan: Plan, noise: OptimizedNoise, delta: float) -> Finding:
    """Tests that the largest normal, made by the rarest words, is so large that real normals are rarely beyond it."""
    few = replace(noise, weights=Fixed(torch.ones(_FEW)))
    value, scales, _ = _drawn_from(few, plan.clip.bound, LowestStream(b""), _FEW)
    end = float(np.abs(value / scales).max())
    shift = (2.0 if plan.adjacency is Adjacency.REPLACE_ONE else 1.0) / noise.noise_multiplier
    probability = plan.steps * (1 + exp(min(shift, 700.0))) * 2 * float(stats.norm.sf(end))
    return at_most(TAIL, "probability of a draw beyond the generator's range", probability, (delta or 1e-15) / 1000)


def _drawn_from(
    noise: OptimizedNoise, bound: float, stream: Stream, size: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A release of a sum over no units, the standard deviations drawn for it, and the spacings of its lattice."""
    layout = Layout(("probe",), ((size,),))
    at = NoiseAt(stream, 0, noise.init(layout))
    density = noise.law(bound, at).density
    value = noise.add(BoundedSum.of_nobody(bound, layout), at).value.numpy()
    spacings = spacings_of(density.expected_square().sqrt().numpy())
    return value, density.scales(stream, step=0).of(slice(0, size)), spacings


_UNITS, _RATE = 12, 0.15  # batches of zero to about five units, to find a scale that depends on the batch
_DRAWS, _FEWEST_STEPS, _MOST_STEPS = 40_000, 8, 400


@dataclass(frozen=True, repr=False)
class NoiseSample:
    """The noise of several steps, and the layout of its coordinates."""

    drawn: list[StepNoise] = field(repr=False)
    layout: Layout


def noise_sample(plan: Plan, model: nn.Module, records: Records, *, seed: int) -> NoiseSample:
    """The noise of many steps over batches of different sizes, including empty ones."""
    steps = min(_MOST_STEPS, max(_FEWEST_STEPS, ceil(_DRAWS / Layout.of(model).size)))
    short_plan = undecoded(with_poisson(plan, rate=_RATE, steps=steps))
    run = SyntheticRun.fresh(short_plan, model, ordinary(records, _UNITS), seed=seed)
    return NoiseSample(list(run.noise()), run.encoded_layout)


def examine(plan: Plan, model: nn.Module, records: Records, *, seed: int, delta: float) -> Iterator[Finding]:
    """Tests a sample of the plan's noise against the distribution that the event assumes."""
    sample = noise_sample(plan, model, records, seed=seed)
    drawn, layout = sample.drawn, sample.layout
    match plan.noise:
        case OptimizedNoise() as noise:
            yield from examine_block_noise(plan, noise, drawn, layout, delta=delta)
        case NormalNoise() as noise:
            yield from examine_normal_noise(plan, noise, drawn, layout, delta=delta)
        case noise:
            raise UsageError(
                f"noise must be a NormalNoise or an OptimizedNoise to be verified, got {type(noise).__name__}."
            )
