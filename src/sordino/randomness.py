"""Cryptographic randomness with an address: the same (key, stream, step, block) always gives the same bytes.

Bytes are AES-256 in counter mode, keyed per stream, so that sampling, dropout, coding and noise never share a bit.
There is no state to save and none to forget: a resumed step draws what it drew before, and two never draw the same.
The counter block is (step: 6 bytes, block: 4 bytes, counter: 6 bytes), which is unique for every 16 bytes ever drawn.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from queue import Empty, SimpleQueue

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sordino import validate
from sordino.errors import UsageError

_KEY_BYTES = 32
_ZEROS = bytes(1 << 20)

# A uniform u below 2**-32 is refined with 64 further bits, so u >= 2**-128, where exponentials and Box-Muller end.
LARGEST_EXPONENTIAL = 128 * math.log(2)
LARGEST_NORMAL = math.sqrt(2 * LARGEST_EXPONENTIAL)
NORMALS_PER_BLOCK = 1 << 16
_PAIRS = NORMALS_PER_BLOCK // 2

# Torch's threads go on spinning for some milliseconds after an operation. Helpers gain nothing until they sleep.
_BLOCKS_PER_THREAD = 16
_MOST_THREADS = 16


@dataclass(frozen=True)
class Key:
    """The secret from which all randomness of one run is derived. Whoever has it can remove the noise."""

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
        """A reproducible key for tests and experiments: the noise is as public as the seed."""
        validate.count(at_least=0, at_most=2**63 - 1, seed=seed)
        return cls(
            hashlib.blake2b(seed.to_bytes(8, "big"), digest_size=_KEY_BYTES, person=b"sordino-seed").digest(), True
        )

    def renewed(self, times: int) -> Key:
        """The key that follows this one: the same run, and yet independent of all that was drawn before."""
        if times == 0:
            return self
        name = b"renewed" + times.to_bytes(8, "big")
        return Key(hashlib.blake2b(name, key=self.secret, digest_size=_KEY_BYTES).digest(), self.reproducible)

    def stream(self, name: str) -> Stream:
        """An independent stream: its key is a keyed hash of its name."""
        return Stream(hashlib.blake2b(name.encode(), key=self.secret, digest_size=_KEY_BYTES).digest())


@dataclass(frozen=True)
class Stream:
    """Uniform, normal and exponential numbers, each draw addressed by step and block.

    >>> stream = Key.from_seed(0).stream("example")
    >>> bool((stream.uniforms(3, step=7) == stream.uniforms(3, step=7)).all())
    True
    """

    secret: bytes = field(repr=False)

    def named(self, name: str) -> Stream:
        """An independent stream for one of several purposes: draws of two kinds must not share an address.

        >>> stream = Key.from_seed(0).stream("noise")
        >>> stream.named("radius") == stream.named("direction")
        False
        """
        return Key(self.secret).stream(name)

    def words(self, number: int, *, step: int, block: int = 0) -> NDArray[np.uint64]:
        """Independent uniform 64-bit words."""
        address = step.to_bytes(6, "big") + block.to_bytes(4, "big") + bytes(6)
        encryptor = Cipher(algorithms.AES(self.secret), modes.CTR(address)).encryptor()
        size = 8 * number
        out = np.empty(size + 15, np.uint8)
        for start in range(0, size, len(_ZEROS)):
            stop = min(start + len(_ZEROS), size)
            encryptor.update_into(memoryview(_ZEROS)[: stop - start], out[start : stop + 15].data)
        return out[:size].view(np.uint64)

    def uniforms(self, number: int, *, step: int, block: int = 0) -> NDArray[np.float64]:
        """Uniform on [0, 1) with 53 bits: a float32 grid would set a small sampling rate wrong by up to a percent."""
        return (self.words(number, step=step, block=block) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def chosen(self, number: int, chance: float, *, step: int) -> NDArray[np.int64]:
        """Which of 0..number-1 come up, each independently with this chance: those whose uniform is below it."""
        largest_word = (math.ceil(chance * 2**53) << 11) - 1  # the same comparison, before words are made uniforms
        return np.flatnonzero(self.words(number, step=step) <= np.uint64(largest_word))

    def permutation(self, number: int, *, step: int) -> NDArray[np.int64]:
        """A uniformly random order of 0..number-1: the order of 64-bit words, which tie with chance n^2 / 2^65."""
        return np.argsort(self.words(number, step=step), kind="stable")

    def subset(self, number: int, size: int, *, step: int) -> NDArray[np.int64]:
        """A uniformly random set of `size` of 0..number-1, in rising order: the first of the permutation."""
        words = self.words(number, step=step)
        # How many words lie below a share of their range has a standard deviation of at most sqrt(number) / 2. So only
        # words within eight of them from where the set should end have to be put in order.
        spread = 4 * math.isqrt(number) + 4
        low, high = (min(2**64 - 1, max(0, size + s) * 2**64 // number) for s in (-spread, spread))
        chosen = words < np.uint64(low)
        near = np.flatnonzero(~chosen & (words <= np.uint64(high)))
        missing = size - int(np.count_nonzero(chosen))
        if not 0 <= missing <= len(near):
            chosen, near, missing = np.zeros(number, np.bool_), np.arange(number), size
        chosen[near[np.argsort(words[near], kind="stable")[:missing]]] = True
        return np.flatnonzero(chosen)

    def normals(self, number: int, *, step: int) -> NDArray[np.float32]:
        """Standard normals up to `LARGEST_NORMAL`, drawn in blocks of fixed size on as many threads as torch may use.

        Guarantee: a block depends on its address only, so the number of threads changes nothing. The square of the
        radius is taken in float64 from at least 63 bits: in float32 it would end at 5.77 squared, with an atom at zero.
        """
        out = np.empty(number, np.float32)
        parts = [out[start : start + NORMALS_PER_BLOCK] for start in range(0, number, NORMALS_PER_BLOCK)]
        _share_out(lambda block: self._fill_with_normals(parts[block], step, block), len(parts))
        return out

    def _fill_with_normals(self, out: NDArray[np.float32], step: int, block: int) -> None:
        """Box and Muller (1958): the cosines of a block, then the sines, as many as `out` has room for."""
        cosines, sines = out[:_PAIRS], out[_PAIRS:]
        words = self.words(_PAIRS + (len(cosines) + 1) // 2, step=step, block=2 * block)
        radius = self._logarithms(words[: len(cosines)], step, block)
        radius *= -2.0
        radius = np.sqrt(radius.astype(np.float32))
        angle = words[_PAIRS:].view(np.int32)[: len(cosines)].astype(np.float32)
        angle *= np.float32(math.pi * 2.0**-31)
        np.cos(angle, out=cosines)
        np.sin(angle[: len(sines)], out=sines)
        cosines *= radius
        sines *= radius[: len(sines)]

    def exponentials(self, number: int, *, step: int) -> NDArray[np.float64]:
        """Standard exponentials up to `LARGEST_EXPONENTIAL`, in float64 and in blocks of fixed size, as normals are.

        >>> stream = Key.from_seed(0).stream("example")
        >>> bool((stream.exponentials(3, step=0) == stream.exponentials(5, step=0)[:3]).all())
        True
        """
        out = np.empty(number)
        parts = [out[start : start + NORMALS_PER_BLOCK] for start in range(0, number, NORMALS_PER_BLOCK)]

        def fill(block: int) -> None:
            words = self.words(len(parts[block]), step=step, block=2 * block)
            np.negative(self._logarithms(words, step, block), out=parts[block])

        _share_out(fill, len(parts))
        return out

    def _logarithms(self, words: NDArray[np.uint64], step: int, block: int) -> NDArray[np.float64]:
        """Logarithms of uniforms on (0, 1] with 63 bits, and with 127 in the lower tail."""
        whole = (words >> np.uint64(1)).view(np.int64)
        uniform = whole.astype(np.float64)
        uniform += 0.5
        if whole.min() < 2**31:  # one draw in four billion
            tail = np.flatnonzero(whole < 2**31)
            fraction = self.words(len(words), step=step, block=2 * block + 1)[tail] * 2.0**-64
            uniform[tail] = whole[tail] + (fraction + 2.0**-65)
        uniform *= 2.0**-63
        np.log(uniform, out=uniform)
        return uniform


def _share_out(work: Callable[[int], None], blocks: int) -> None:
    """Carries out work(0) to work(blocks - 1), each once, with helpers if there is enough to do.

    The caller takes part, so that nothing waits for a helper which the machine has no room for.
    """
    todo: SimpleQueue[int] = SimpleQueue()
    for block in range(blocks):
        todo.put(block)

    def take_part() -> None:
        while True:
            try:
                block = todo.get_nowait()
            except Empty:
                return
            work(block)

    threads = min(torch.get_num_threads(), _MOST_THREADS, blocks // _BLOCKS_PER_THREAD)
    helping = [_helpers(os.getpid()).submit(take_part) for _ in range(1, threads)]
    take_part()
    for helper in helping:
        if not helper.cancel():  # it has begun, and may hold a block
            helper.result()


@lru_cache(maxsize=1)
def _helpers(process: int) -> ThreadPoolExecutor:
    """The threads of one process, started when first needed: a fork leaves them behind."""
    return ThreadPoolExecutor(_MOST_THREADS - 1, thread_name_prefix="sordino")
