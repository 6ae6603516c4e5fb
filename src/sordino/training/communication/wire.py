"""Wire formats: how a (sparse) update is encoded as bytes. Values are float32.

`DenseFormat` sends every coordinate. `IndexFormat` sends the kept coordinates and their indices. `SeedFormat` sends the
kept values only: with random sparsification both ends draw the mask from a shared seed, so the length of a message is
proportional to the number of kept coordinates.

The length of a message depends only on the number of coordinates and on the mask, which are public.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sordino.errors import StateError

_VALUE, _INDEX, _COUNT = np.dtype("<f4"), np.dtype("<u4"), np.dtype("<u4")


@dataclass(frozen=True)
class Wire(ABC):
    """Base class of wire formats. `keep`, shape (d,), is True where a coordinate is kept; the others are zero."""

    name: ClassVar[str]

    @abstractmethod
    def pack(self, values: Tensor, keep: Tensor) -> bytes:
        """Encodes an update (d,) that is zero outside the mask."""

    @property
    def once_told(self) -> Wire:
        """The format of further messages with a mask that the receiver knows from an earlier message."""
        return self

    @abstractmethod
    def unpack(self, message: bytes, keep: Tensor) -> Tensor:
        """Decodes an update (d,), float64. `keep` is the receiver's own mask; formats that do not need it ignore it."""


@dataclass(frozen=True)
class DenseFormat(Wire):
    """Sends every coordinate, including zeros.

    >>> len(DenseFormat().pack(torch.tensor([0.0, 2.0, 0.0]), torch.tensor([False, True, False])))
    12
    """

    name: ClassVar[str] = "dense"

    def pack(self, values: Tensor, keep: Tensor) -> bytes:
        return _floats(values)

    def unpack(self, message: bytes, keep: Tensor) -> Tensor:
        return _values(message, len(keep))


@dataclass(frozen=True)
class IndexFormat(Wire):
    """Sends the number of kept coordinates, their indices and their values.

    Indices are sent as integers or as a bitmap, whichever is shorter, and only once for each mask: further messages
    with the same mask have values only.

    >>> update, keep = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([False, True, False])
    >>> IndexFormat().unpack(IndexFormat().pack(update, keep), torch.zeros(3, dtype=torch.bool))
    tensor([0., 2., 0.], dtype=torch.float64)
    """

    name: ClassVar[str] = "index-coded"

    @property
    def once_told(self) -> Wire:
        return SeedFormat()

    def pack(self, values: Tensor, keep: Tensor) -> bytes:
        indices = keep.nonzero()[:, 0].numpy()
        encoded = indices.astype(_INDEX).tobytes()
        if len(encoded) > _bitmap_length(len(keep)):
            encoded = np.packbits(keep.numpy()).tobytes()
        return np.array(len(indices), _COUNT).tobytes() + encoded + _floats(values[keep])

    def unpack(self, message: bytes, keep: Tensor) -> Tensor:
        size = len(keep)
        count = int.from_bytes(message[: _COUNT.itemsize], "little")
        if len(message) < _COUNT.itemsize:
            raise StateError("an update must begin with the number of its values.")
        if count > size:
            raise StateError("an update declares more values than the model has coordinates.")
        index_bytes = min(count * _INDEX.itemsize, _bitmap_length(size))
        body = message[_COUNT.itemsize :]
        encoded, values = body[:index_bytes], _values(body[index_bytes:], count)
        is_list = index_bytes == count * _INDEX.itemsize
        indices = _from_list(encoded, size) if is_list else _from_bitmap(encoded, size)
        if len(indices) != count:
            raise StateError("an update has another number of indices than it declares.")
        return torch.zeros(size, dtype=torch.float64).index_put_((indices,), values)


@dataclass(frozen=True)
class SeedFormat(Wire):
    """Sends the kept values in order and nothing else: the receiver computes the mask itself.

    >>> update, keep = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([False, True, False])
    >>> message = SeedFormat().pack(update, keep)
    >>> len(message), SeedFormat().unpack(message, keep)
    (4, tensor([0., 2., 0.], dtype=torch.float64))
    """

    name: ClassVar[str] = "seed-coded"

    def pack(self, values: Tensor, keep: Tensor) -> bytes:
        return _floats(values[keep])

    def unpack(self, message: bytes, keep: Tensor) -> Tensor:
        update = torch.zeros(len(keep), dtype=torch.float64)
        update[keep] = _values(message, int(keep.sum()))
        return update


def _floats(values: Tensor) -> bytes:
    return values.detach().numpy().astype(_VALUE).tobytes()


def _values(message: bytes, count: int) -> Tensor:
    if len(message) != count * _VALUE.itemsize:
        raise StateError(f"an update must have {count * _VALUE.itemsize} bytes of values here, got {len(message)}.")
    values = torch.from_numpy(np.frombuffer(message, _VALUE).astype(np.float64))
    if not bool(values.isfinite().all()):
        raise StateError("an update contains a value that is not finite.")
    return values


def _from_list(encoded: bytes, size: int) -> Tensor:
    indices = torch.from_numpy(np.frombuffer(encoded, _INDEX).astype(np.int64))
    if len(indices) and (indices[-1] >= size or not bool((indices.diff() > 0).all())):
        raise StateError("the indices of an update must be increasing and within the model's coordinates.")
    return indices


def _from_bitmap(encoded: bytes, size: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(encoded, np.uint8))[:size]
    return torch.from_numpy(bits.astype(bool)).nonzero()[:, 0]


def _bitmap_length(size: int) -> int:
    return -(-size // 8)
