"""What every law of noise is asked: is it independent from step to step, and are its last bits as they should be?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sordino.lattice import spacing_of as lattice_spacing
from sordino.randomness import Stream
from sordino.verification.verdict import Finding, probable

SCALE, INDEPENDENCE, TAIL = "noise scale and shape", "noise independence", "noise tail"
_LAST_BITS = 4


def independence(standard: NDArray[np.float64]) -> Iterator[Finding]:
    """Steps, and halves of a step, are uncorrelated; the largest of k correlations is judged with a factor k."""
    steps, size = standard.shape
    between = (standard @ standard.T)[np.tril_indices(steps, -1)]
    yield probable(INDEPENDENCE, "correlation of two steps", _smallest_p_value(between, size))
    half = size // 2
    if half:
        within = np.einsum("ij,ij->i", standard[:, :half], standard[:, half : 2 * half])
        yield probable(INDEPENDENCE, "correlation within a step", _smallest_p_value(within, half))


def last_bits(noise: NDArray[np.float64], smallest_stds: Sequence[float]) -> Finding:
    """The last bits on each step's lattice are uniform. A coarser generator (float16) leaves them at zero."""
    spacings = np.array([lattice_spacing(std) for std in smallest_stds])[:, None]
    residues = np.mod(np.round(noise / spacings), 2**_LAST_BITS).astype(int).ravel()
    counts = np.bincount(residues, minlength=2**_LAST_BITS)
    return probable(SCALE, "uniform last bits", float(stats.chisquare(counts).pvalue))


class ZeroStream(Stream):
    """Every word is zero, the one draw that reaches the end of the tail."""

    def words(self, number: int, *, step: int, block: int = 0) -> NDArray[np.uint64]:
        return np.zeros(number, np.uint64)

    def named(self, name: str) -> Stream:
        return self


def _smallest_p_value(products: NDArray[np.float64], size: int) -> float:
    """Of sums of `size` products of two independent numbers of variance one."""
    if not products.size:
        return 1.0
    return min(1.0, products.size * 2 * float(stats.norm.sf(np.abs(products).max() / sqrt(size))))
