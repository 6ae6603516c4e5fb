"""Exponentials depend on their address only, and end where they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from contracts import stream
from scipy import stats

from sordino.randomness import LARGEST_EXPONENTIAL, NORMALS_PER_BLOCK, Stream

MANY = 40 * NORMALS_PER_BLOCK + 12_345


def test_they_are_exponential():
    drawn = stream().exponentials(2 * NORMALS_PER_BLOCK, step=0)
    assert stats.kstest(drawn, stats.expon().cdf).pvalue > 1e-6
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / np.sqrt(len(drawn))


def test_the_number_of_threads_changes_nothing():
    before = torch.get_num_threads()
    try:
        drawn = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            drawn.append(stream().exponentials(MANY, step=3).tobytes())
    finally:
        torch.set_num_threads(before)
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.parametrize("number", [0, 1, 1000, NORMALS_PER_BLOCK, NORMALS_PER_BLOCK + 1])
def test_a_short_draw_is_the_beginning_of_a_long_one(number):
    long = stream().exponentials(2 * NORMALS_PER_BLOCK, step=3)
    assert np.array_equal(stream().exponentials(number, step=3), long[:number])


@pytest.mark.parametrize(("word", "further", "expected"), [(0, 0, 128), (2, 0, 63), (0, 2**63, 64), (2**62, 0, 2)])
def test_the_tail_goes_on_to_its_end(word, further, expected):
    """A first word of zero is refined by a second: -ln u ends at 128 ln 2 and not at 64 ln 2."""

    class Fixed(Stream):
        def words(self, number, *, step, block=0):
            return np.full(number, further if block % 2 else word, np.uint64)

    drawn = Fixed(b"").exponentials(3, step=0)
    assert drawn == pytest.approx(expected * np.log(2))
    assert drawn.max() <= LARGEST_EXPONENTIAL


def test_named_streams_share_nothing():
    words = [stream().named(name).words(1000, step=0) for name in ("radius", "direction")] + [
        stream().words(1000, step=0)
    ]
    assert len(np.unique(np.concatenate(words))) == 3000
