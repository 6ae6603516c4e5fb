"""Cryptographic randomness with an address: the same (key, stream, step, block) always gives the same bytes.

Bytes are AES-256 in counter mode, keyed per stream, so that sampling, dropout, coding and noise never share a bit.
There is no state to save and none to forget: a resumed step draws what it drew before, and two never draw the same.
The counter block is (step: 6 bytes, block: 4 bytes, counter: 6 bytes), which is unique for every 16 bytes ever drawn.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sordino import validate
from sordino.errors import UsageError

_KEY_BYTES = 32
_ZEROS = bytes(1 << 20)

# A radius u below 2**-32 is refined with 64 further bits, so u >= 2**-128 and Box-Muller ends there.
LARGEST_NORMAL = math.sqrt(2 * 128 * math.log(2))
NORMALS_PER_BLOCK = 1 << 16


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

    def stream(self, name: str) -> Stream:
        """An independent stream: its key is a keyed hash of its name."""
        return Stream(hashlib.blake2b(name.encode(), key=self.secret, digest_size=_KEY_BYTES).digest())


@dataclass(frozen=True)
class Stream:
    """Uniform and normal numbers, each draw addressed by step and block.

    >>> stream = Key.from_seed(0).stream("example")
    >>> bool((stream.uniforms(3, step=7) == stream.uniforms(3, step=7)).all())
    True
    """

    secret: bytes = field(repr=False)

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

    def permutation(self, number: int, *, step: int) -> NDArray[np.int64]:
        """A uniformly random order of 0..number-1: the order of 64-bit words, which tie with chance n^2 / 2^65."""
        return np.argsort(self.words(number, step=step), kind="stable")

    def normals(self, number: int, *, step: int) -> NDArray[np.float32]:
        """Standard normals up to `LARGEST_NORMAL`, drawn in blocks of fixed size.

        The radius is taken in float64 from at least 63 bits: in float32 it would end at 5.77 and have an atom at zero.
        """
        out = np.empty(number, np.float32)
        for block, start in enumerate(range(0, number, NORMALS_PER_BLOCK)):
            part = out[start : start + NORMALS_PER_BLOCK]
            part[:] = self._normal_block(step, block)[: len(part)]
        return out

    def _normal_block(self, step: int, block: int) -> NDArray[np.float32]:
        """Box and Muller (1958) on one block."""
        pairs = NORMALS_PER_BLOCK // 2
        words = self.words(pairs + pairs // 2, step=step, block=2 * block)
        whole = words[:pairs] >> np.uint64(1)
        radius = whole + 0.5
        tail = np.flatnonzero(whole < 2**31)
        if tail.size:  # once in four billion draws
            fraction = self.words(pairs, step=step, block=2 * block + 1)[tail] * 2.0**-64
            radius[tail] = whole[tail] + (fraction + 2.0**-65)
        radius *= 2.0**-63
        np.log(radius, out=radius)
        radius *= -2.0
        radius_32 = np.sqrt(radius, out=radius).astype(np.float32)
        angle = words[pairs:].view(np.int32).astype(np.float32)
        angle *= np.float32(math.pi * 2.0**-31)
        out = np.empty(NORMALS_PER_BLOCK, np.float32)
        np.multiply(np.cos(angle), radius_32, out=out[:pairs])
        np.multiply(np.sin(angle), radius_32, out=out[pairs:])
        return out
