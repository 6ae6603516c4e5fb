"""What every law of noise is asked: is it independent from step to step, and are its last bits as they should be?"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.kernel.lattice import Numbers
from sordino.kernel.randomness import Stream
from sordino.verification.verdict import Finding, probable

SCALE, INDEPENDENCE, TAIL = "noise scale and shape", "noise independence", "noise tail"
_LAST_BITS = 4
_FRACTION_OF_FLOAT32 = 23
_OTHER_GRIDS = 4  # grids of the same spacing in other places, which say what the count in a cell would be by chance


def independence(standard: NDArray[np.float64]) -> Iterator[Finding]:
    """Steps, and halves of a step, are uncorrelated; the largest of k correlations is judged with a factor k."""
    steps, size = standard.shape
    between = (standard @ standard.T)[np.tril_indices(steps, -1)]
    yield probable(INDEPENDENCE, "correlation of two steps", _smallest_p_value(between, size))
    half = size // 2
    if half:
        within = np.einsum("ij,ij->i", standard[:, :half], standard[:, half : 2 * half])
        yield probable(INDEPENDENCE, "correlation within a step", _smallest_p_value(within, half))


def last_bits(noise: NDArray[np.float64], spacings: NDArray[np.float64]) -> Finding:
    """The last bits on the lattice are uniform. A coarser generator (float16) leaves them at zero."""
    residues = np.mod(np.round(noise / spacings), 2**_LAST_BITS).astype(int).ravel()
    counts = np.bincount(residues, minlength=2**_LAST_BITS)
    return probable(SCALE, "uniform last bits", float(stats.chisquare(counts).pvalue))


def resolution(noise: NDArray[np.float64], scales: Numbers, spacings: Numbers) -> Finding:
    """Whether noise over its scale was a float32 number before it was rounded to the lattice.

    So many float32 numbers fall into a cell of the lattice as its place has it, 64 or 65 for instance, and who knows
    the place sees from the counts whether a record moved it. The statistic is the log-likelihood of the counts.
    """
    cells, width = np.abs(np.round(noise / spacings)), spacings / scales
    low, high = (cells - 0.5) * width, (cells + 0.5) * width
    _, exponents = np.frexp(low)
    binade, step = np.ldexp(1.0, exponents - 1), np.ldexp(1.0, exponents - 1 - _FRACTION_OF_FLOAT32)
    inside = (cells > 0) & (high < 2 * binade)  # the spacing of float32 changes from one power of two to the next
    low, high = low[inside] / step[inside], high[inside] / step[inside]

    def counted(offset: float) -> NDArray[np.float64]:
        numbers = np.floor(high + offset) - np.floor(low + offset)
        return np.asarray(np.log(np.maximum(numbers, 0.5) / (high - low)))

    by_chance = [counted((1 + grid) / (1 + _OTHER_GRIDS)) for grid in range(_OTHER_GRIDS)]
    surplus = float(counted(0.0).sum() - np.mean([each.sum() for each in by_chance]))
    spread = float(np.std(by_chance)) * sqrt(len(low) * (1 + 1 / _OTHER_GRIDS))
    return probable(SCALE, "noise finer than float32", float(stats.norm.sf(surplus / spread)) if spread else 1.0)


class LowestStream(Stream):
    """Every word is zero and every further bit is 1: the draw of chance 2^-128, far out in the tail."""

    def words(self, number: int, *, step: int, block: int = 0) -> NDArray[np.uint64]:
        return np.zeros(number, np.uint64)

    def named(self, name: str) -> Stream:
        return _Ones(b"") if name.startswith("further bits") else self


class _Ones(Stream):
    def words(self, number: int, *, step: int, block: int = 0) -> NDArray[np.uint64]:
        return np.ones(number, np.uint64)


def _smallest_p_value(products: NDArray[np.float64], size: int) -> float:
    """Of sums of `size` products of two independent numbers of variance one."""
    if not products.size:
        return 1.0
    return min(1.0, products.size * 2 * float(stats.norm.sf(np.abs(products).max() / sqrt(size))))
