"""Cryptographic randomness with addresses: equal (key, stream, step, block) always give equal bytes.

Bytes are AES-256 in counter mode, with one key per stream, so that sampling, dropout, coding and noise never share a
bit. There is no generator state to save: a resumed step draws what it drew before, and two steps never draw the same
bytes. The counter block is (step: 6 bytes, block: 4 bytes, counter: 6 bytes), which is unique for every 16 bytes drawn.

A normal variate is a real number here: the transform of Box and Muller (1958) of two uniforms with infinitely many
bits, of which the first 64 are drawn. `normals` computes it in float64, to within `NORMAL_ERROR`. `normal_interval`
encloses it in an interval as narrow as needed, from further bits at the same address. Exact rounding
(`sordino.kernel.lattice`) relies on both.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import count
from math import floor, isqrt, pi
from queue import Empty, SimpleQueue
from threading import local
from typing import Any, cast

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from mpmath.ctx_iv import MPIntervalContext
from numpy.typing import NDArray

from sordino._input import validate
from sordino.errors import UsageError

_KEY_BYTES = 32
_ZEROS = bytes(1 << 20)

NORMALS_PER_BLOCK = 1 << 16
_PAIRS = NORMALS_PER_BLOCK // 2

NORMAL_ERROR = 2.0**-41  # largest distance of a float64 normal from the real one; see `Stream.normals`
# Words between these two give a radius between 2^-10 and 5.6. Outside, one pair in 10^6, float64 would lose bits.
_SMALLEST_WORD, _LARGEST_WORD = np.uint64(2**42), np.uint64(2**64 - 2**43)
_FIRST_FURTHER_WORDS, _MOST_FURTHER_WORDS = 1, 64  # more than 4160 bits are needed with probability 2^-3000

# Words that are in memory at a time (32 MiB), and the probability 2^-3 up to which gaps are cheaper than words.
_MOST_WORDS, _LARGEST_MULTIPLE_FOR_GAPS = 1 << 22, 1 << 50

# Torch's threads spin for some milliseconds after an operation. Helper threads gain nothing until those sleep.
_BLOCKS_PER_THREAD = 16

# A turn is divided into 2^13 intervals. Within half of one (`_HALF`), two terms of a cosine are accurate to 2^-53.
_INTERVAL_BITS = 13
_INTERVALS = 1 << _INTERVAL_BITS
_MIDDLES = (np.arange(_INTERVALS) + 0.5) * (2 * pi / _INTERVALS)
_COSINES, _SINES = np.cos(_MIDDLES), np.sin(_MIDDLES)
_HALF = pi / _INTERVALS
_MOST_THREADS = 16


@dataclass(frozen=True)
class Key:
    """The secret from which all randomness of one run is derived. Anyone who knows it can remove the noise."""

    secret: bytes = field(repr=False)
    reproducible: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != _KEY_BYTES:
            raise UsageError(f"a key has {_KEY_BYTES} bytes, got {len(self.secret)}.")

    @classmethod
    def fresh(cls) -> Key:
        """A key from the operating system's entropy."""
        return cls(secrets.token_bytes(_KEY_BYTES))

    @classmethod
    def from_seed(cls, seed: int) -> Key:
        """A reproducible key for tests and experiments. The noise is then as public as the seed."""
        validate.count(at_least=0, at_most=2**63 - 1, seed=seed)
        return cls(
            hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=_KEY_BYTES, person=b"sordino-seed").digest(), True
        )

    def renewed(self, times: int) -> Key:
        """A derived key for a run that continues and must not repeat its draws: independent of all draws before."""
        if times == 0:
            return self
        name = b"renewed" + times.to_bytes(8, "big")
        return Key(hashlib.blake2b(name, key=self.secret, digest_size=_KEY_BYTES).digest(), self.reproducible)

    def of_release(self, number: int) -> Key:
        """The key of one release of a budget. Two releases have independent keys, even if they have one seed.

        >>> Key.from_seed(0).of_release(0) == Key.from_seed(0).of_release(1)
        False
        """
        name = b"release" + number.to_bytes(8, "big")
        return Key(hashlib.blake2b(name, key=self.secret, digest_size=_KEY_BYTES).digest(), self.reproducible)

    def stream(self, name: str) -> Stream:
        """An independent stream, whose key is a keyed hash of its name."""
        return Stream(hashlib.blake2b(name.encode(), key=self.secret, digest_size=_KEY_BYTES).digest())


@dataclass(frozen=True)
class Stream:
    """Random words, uniforms, normals and subsets. Each draw is addressed by step and block.

    >>> stream = Key.from_seed(0).stream("example")
    >>> bool((stream.uniforms(3, step=7) == stream.uniforms(3, step=7)).all())
    True
    """

    secret: bytes = field(repr=False)

    def named(self, name: str) -> Stream:
        """An independent stream for one of several purposes. Draws for two purposes must not share an address.

        >>> stream = Key.from_seed(0).stream("noise")
        >>> stream.named("radius") == stream.named("direction")
        False
        """
        return Key(self.secret).stream(name)

    def words(self, number: int, *, step: int, block: int = 0, first: int = 0) -> NDArray[np.uint64]:
        """Independent uniform 64-bit words, from word number `first` (even) of the block on."""
        address = step.to_bytes(6, "big") + block.to_bytes(4, "big") + (first // 2).to_bytes(6, "big")
        encryptor = Cipher(algorithms.AES(self.secret), modes.CTR(address)).encryptor()
        size = 8 * number
        out = np.empty(size + 15, np.uint8)
        for start in range(0, size, len(_ZEROS)):
            stop = min(start + len(_ZEROS), size)
            encryptor.update_into(memoryview(_ZEROS)[: stop - start], out[start : stop + 15].data)
        return out[:size].view(np.uint64)

    def uniforms(self, number: int, *, step: int, block: int = 0) -> NDArray[np.float64]:
        """Uniforms on [0, 1) with 53 bits. On a float32 grid, small sampling rates would be off by up to a percent."""
        return (self.words(number, step=step, block=block) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def chosen(self, number: int, probability: float, *, step: int) -> NDArray[np.int64]:
        """The indices in 0..number-1 that are selected, each independently with this probability.

        The probability is rounded down to a multiple of 2^-53, because epsilon rises with it. Of many indices with a
        small probability, only the gaps between those that are selected are drawn. So time and memory grow with the
        selection. The number of indices decides between the two ways, and the law of the selection is the same.
        """
        multiple = floor(probability * 2**53)
        if not multiple:
            return np.zeros(0, np.int64)
        if number > _MOST_WORDS and multiple <= _LARGEST_MULTIPLE_FOR_GAPS:
            return self._chosen_by_gaps(number, multiple * 2.0**-53, step=step)
        threshold, chosen = np.uint64((multiple << 11) - 1), list[NDArray[np.int64]]()
        for first in range(0, number, _MOST_WORDS):
            words = self.words(min(_MOST_WORDS, number - first), step=step, first=first)
            chosen.append(np.flatnonzero(words <= threshold) + first)
        return np.concatenate([np.zeros(0, np.int64), *chosen])

    def _chosen_by_gaps(self, number: int, probability: float, *, step: int) -> NDArray[np.int64]:
        """Indices whose gaps are independent and geometric, as those of independent trials are.

        Guarantee: a gap is floor(log(U) / log(1 - probability)) of a real uniform U with infinitely many bits, so each
        index is selected with exactly this probability, independently of the others.
        """
        stream, chosen, last = self.named("gaps"), list[NDArray[np.int64]](), -1
        expected = number * probability
        at_once = int(expected + 8 * expected**0.5) + 16
        for block in count():
            gaps = stream.geometric(at_once, probability, step=step, block=block)
            chosen.append(last + np.cumsum(np.minimum(gaps, number) + 1))
            last = int(chosen[-1][-1])
            if last >= number:
                found = np.concatenate(chosen)
                return found[: np.searchsorted(found, number)]
        raise AssertionError  # `count` has no end

    def geometric(
        self, number: int, probability: float, *, step: int, block: int = 0, error: float = 0.0
    ) -> NDArray[np.int64]:
        """The numbers of failures before a success of this probability, below 2^-3, as real uniforms give them.

        A float64 quotient of logarithms is within `tolerance` of the real one: the bits of U that are not drawn change
        log(U) by at most 1 / (2 word + 1), the rounding of U by at most 2^-52, and logarithms and quotient have
        relative errors of at most 2^-47. A quotient that near to an integer is computed again as an interval. `error`
        widens the tolerance.
        """
        words = self.words(number, step=step, block=block)
        of_one, halves = -np.log1p(-probability), words.astype(np.float64) + 0.5
        quotients = -np.log(halves * 2.0**-64) / of_one
        tolerance = (1 / halves + 2.0**-51) / of_one + quotients * 2.0**-45 + error
        gaps = np.floor(quotients)
        near = np.minimum(quotients - gaps, gaps + 1 - quotients) <= tolerance
        result: NDArray[np.int64] = gaps.astype(np.int64)
        for index in np.flatnonzero(near).tolist():
            result[index] = self._geometric_exactly(index, probability, step=step, block=block)
        return result

    def _geometric_exactly(self, index: int, probability: float, *, step: int, block: int) -> int:
        def quotient(further: int) -> Any:
            uniform = self.uniform_interval(index, step=step, block=block, further=further)
            interval = uniform.ctx
            return interval.log(uniform) / interval.log(1 - interval.mpf(probability))

        for enclosure in enclosures(quotient):
            low: int = floor(enclosure.a)
            if low == floor(enclosure.b):
                return low
        raise AssertionError  # needs more than 4160 bits, with probability 2^-3000

    def permutation(self, number: int, *, step: int) -> NDArray[np.int64]:
        """A uniformly random order of 0..number-1, that of 64-bit words, which tie with probability n^2 / 2^65."""
        return np.argsort(self.words(number, step=step), kind="stable")

    def subset(self, number: int, size: int, *, step: int) -> NDArray[np.int64]:
        """A uniformly random subset of 0..number-1 of `size` elements, sorted: the first of the permutation."""
        words = self.words(number, step=step)
        # The number of words below a threshold has a standard deviation of at most sqrt(number) / 2. So only words
        # within eight standard deviations of the expected end of the subset have to be sorted.
        spread = 4 * isqrt(number) + 4
        low, high = (min(2**64 - 1, max(0, size + s) * 2**64 // number) for s in (-spread, spread))
        chosen = words < np.uint64(low)
        near = np.flatnonzero(~chosen & (words <= np.uint64(high)))
        missing = size - int(np.count_nonzero(chosen))
        if not 0 <= missing <= len(near):
            chosen, near, missing = np.zeros(number, np.bool_), np.arange(number), size
        chosen[near[np.argsort(words[near], kind="stable")[:missing]]] = True
        return np.flatnonzero(chosen)

    def normals(self, number: int, *, step: int) -> NDArray[np.float64]:
        """Standard normals, drawn in blocks of fixed size on as many threads as torch may use.

        Guarantee: a block depends on its address only, so the number of threads changes nothing. Each value is within
        `NORMAL_ERROR` of the real normal at its address, if NumPy's logarithms have a relative error of at most 2^-47,
        which is 32 units in the last place. Errors, for radius r: 2^-54 / r from the rounding of a uniform near 1,
        2^-44 from the bits after the first 63, 2^-48 r from the logarithm, 2^-49 r from cosines and sines.
        """
        out = np.empty(number)
        self.in_blocks(number, lambda block, part: self.fill_with_normals(out[part], step=step, block=block))
        return out

    def in_blocks(self, number: int, work: Callable[[int, slice], None]) -> None:
        """Calls `work(block, slice)` once for each block of `number` normals, on as many threads as torch may use."""
        parts = [slice(start, min(start + NORMALS_PER_BLOCK, number)) for start in range(0, number, NORMALS_PER_BLOCK)]
        _run_blocks(lambda block: work(block, parts[block]), len(parts))

    def fill_with_normals(self, out: NDArray[np.float64], *, step: int, block: int) -> None:
        """Fills `out` with the start of a block of normals (Box and Muller 1958): first cosines, then sines."""
        cosines, sines = out[:_PAIRS], out[_PAIRS:]
        words = self.words(len(cosines), step=step, block=2 * block)
        radius = (words >> np.uint64(1)).view(np.int64).astype(np.float64)  # signed words are converted faster
        radius += 0.5
        radius *= 2.0**-63
        np.log(radius, out=radius)
        radius *= -2.0
        np.sqrt(radius, out=radius)
        _fill_with_cosines(self.words(len(cosines), step=step, block=2 * block + 1), radius, cosines, sines)
        if words.size and (words.min() < _SMALLEST_WORD or words.max() > _LARGEST_WORD):
            for pair in np.flatnonzero((words < _SMALLEST_WORD) | (words > _LARGEST_WORD)).tolist():
                for place in (pair, pair + _PAIRS):
                    if place < len(out):
                        first = block * NORMALS_PER_BLOCK
                        out[place] = self.normal_interval(first + place, step=step, further=2).mid

    def normal_interval(self, index: int, *, step: int, further: int) -> Any:
        """An mpmath interval that contains the real normal at `index`, from 64 * (1 + `further`) bits per uniform.

        >>> stream = Key.from_seed(0).stream("example")
        >>> wide, narrow = (stream.normal_interval(5, step=7, further=words) for words in (1, 2))
        >>> bool(wide.delta > narrow.delta and narrow in wide)
        True
        """
        block, place = divmod(index, NORMALS_PER_BLOCK)
        pair = place % _PAIRS
        uniform = self.uniform_interval(pair, step=step, block=2 * block, further=further)
        turns = self.uniform_interval(pair, step=step, block=2 * block + 1, further=further)
        interval = uniform.ctx
        angle = 2 * interval.pi * turns
        return interval.sqrt(-2 * interval.log(uniform)) * (interval.cos if place < _PAIRS else interval.sin)(angle)

    def uniform_interval(self, index: int, *, step: int, block: int = 0, further: int) -> Any:
        """An mpmath interval that contains the uniform whose first 64 bits are the word at `index`."""
        bits = 64 * (1 + further)
        rest = self.named(f"further bits of word {index} in block {block}").words(further, step=step).tolist()
        whole = 0
        pair = self.words(2, step=step, block=block, first=index - index % 2)
        for word in (int(pair[index % 2]), *rest):
            whole = whole << 64 | word
        interval = _own.interval_arithmetic
        interval.prec = bits + 64
        return interval.mpf([whole, whole + 1]) / interval.mpf(2) ** bits


class _OfThread(local):
    """A context of mpmath, which takes longer to make than an interval.

    Its precision is an attribute, so each thread has its own. Intervals enclose the real number at any precision.
    """

    @cached_property
    def interval_arithmetic(self) -> Any:
        return cast(Callable[[], Any], MPIntervalContext)()


_own = _OfThread()


def _fill_with_cosines(
    turns: NDArray[np.uint64], radius: NDArray[np.float64], cosines: NDArray[np.float64], sines: NDArray[np.float64]
) -> None:
    """Fills `cosines` and `sines` with `radius` times those of 2 pi * turns / 2^64, as far as they have room.

    The first 13 bits look up the middle of an interval, and the other 51 rotate it by an angle d of at most pi / 8192.
    There d - d^3 / 6 is accurate to 2^-63, and 1 - 2^-53 - (1/2 - h^2 / 24) d^2, with the largest angle h, to 2^-53:
    that is the cosine's Chebyshev approximation. With rounding, cosines and sines are accurate to 2^-49. NumPy's cosine
    in float64 takes five times as long, and that of torch starts threads of its own. Overwrites `turns`.
    """
    place = (turns >> np.uint64(64 - _INTERVAL_BITS)).view(np.int64)
    middle_cosine, middle_sine = _COSINES.take(place, mode="wrap"), _SINES.take(place, mode="wrap")  # without checks
    turns &= np.uint64(2 ** (64 - _INTERVAL_BITS) - 1)
    turns |= np.uint64(0x3FF << 52)
    angle = turns.view(np.float64)
    angle -= 1.25  # now in [-1/4, 1/4), in units of two intervals
    unit = 4 * _HALF
    square = angle * angle
    factor = square * (-(unit**3) / 6)
    factor += unit
    angle *= factor
    angle *= radius  # now the sine of the angle, times the radius
    square *= (_HALF**2 / 24 - 0.5) * unit**2
    square += 1 - 2.0**-53
    square *= radius  # now the cosine of the angle, times the radius
    np.multiply(middle_cosine, square, out=cosines)
    np.multiply(middle_sine, angle, out=factor)
    cosines -= factor
    fit = slice(len(sines))
    np.multiply(middle_sine[fit], square[fit], out=sines)
    np.multiply(middle_cosine[fit], angle[fit], out=factor[fit])
    sines += factor[fit]


def enclosures(further: Callable[[int], Any]) -> Iterator[Any]:
    """Ever narrower intervals around one real number, from ever more bits. The caller stops when it can decide."""
    words = _FIRST_FURTHER_WORDS
    while words <= _MOST_FURTHER_WORDS:
        yield further(words)
        words *= 2


def _run_blocks(work: Callable[[int], None], blocks: int) -> None:
    """Calls work(0) to work(blocks - 1) once each, with helper threads if there is enough to do.

    The calling thread works too, so that nothing waits for a helper that gets no processor.
    """
    todo: SimpleQueue[int] = SimpleQueue()
    for block in range(blocks):
        todo.put(block)

    def work_until_done() -> None:
        while True:
            try:
                block = todo.get_nowait()
            except Empty:
                return
            work(block)

    threads = min(torch.get_num_threads(), _MOST_THREADS, blocks // _BLOCKS_PER_THREAD)
    helpers = [_helpers(os.getpid()).submit(work_until_done) for _ in range(1, threads)]
    work_until_done()
    for helper in helpers:
        if not helper.cancel():  # it has begun, and may be at work on a block
            helper.result()


@lru_cache(maxsize=1)
def _helpers(process: int) -> ThreadPoolExecutor:
    """The helper threads of a process, started at first use. A forked process has none of its parent's threads."""
    return ThreadPoolExecutor(_MOST_THREADS - 1, thread_name_prefix="sordino")
