"""How an update becomes a message, and back. Values travel as float32.

Three ways to say where the values belong. `DenseFormat` sends every coordinate, `IndexFormat` says which it sends, and
`SeedFormat` sends values alone: with random sparsification both ends can draw the mask from a seed that they share, so
that a message is shorter in proportion to the rate.

The length of a message depends on the number of coordinates and on the mask, which are public, and on nothing else.
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
    """A format. `keep`, shape (d,), is True where a coordinate is kept; the others are zero."""

    name: ClassVar[str]

    @abstractmethod
    def pack(self, values: Tensor, keep: Tensor) -> bytes:
        """The message of an update (d,) that is zero outside the mask."""

    @property
    def once_told(self) -> Wire:
        """The format of further messages under a mask that the receiver was told by an earlier one."""
        return self

    @abstractmethod
    def unpack(self, message: bytes, keep: Tensor) -> Tensor:
        """The update (d,), in float64. `keep` is the receiver's own mask; a format that does not need it ignores it."""


@dataclass(frozen=True)
class DenseFormat(Wire):
    """Every coordinate, zeros included.

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
    """How many are kept, which (as numbers or as one bit for each coordinate, whichever is shorter), and their values.

    Which are kept is said once for each mask: messages that follow under the same one have values alone.

    >>> update, keep = torch.tensor([0.0, 2.0, 0.0]), torch.tensor([False, True, False])
    >>> IndexFormat().unpack(IndexFormat().pack(update, keep), torch.zeros(3, dtype=torch.bool))
    tensor([0., 2., 0.], dtype=torch.float64)
    """

    name: ClassVar[str] = "index-coded"

    @property
    def once_told(self) -> Wire:
        return SeedFormat()

    def pack(self, values: Tensor, keep: Tensor) -> bytes:
        places = keep.nonzero()[:, 0].numpy()
        where = places.astype(_INDEX).tobytes()
        if len(where) > _bitmap_length(len(keep)):
            where = np.packbits(keep.numpy()).tobytes()
        return np.array(len(places), _COUNT).tobytes() + where + _floats(values[keep])

    def unpack(self, message: bytes, keep: Tensor) -> Tensor:
        size = len(keep)
        count = int.from_bytes(message[: _COUNT.itemsize], "little")
        if len(message) < _COUNT.itemsize:
            raise StateError("an update must begin with the number of its values.")
        if count > size:
            raise StateError("an update says that it has more values than the model has coordinates.")
        where = min(count * _INDEX.itemsize, _bitmap_length(size))
        body = message[_COUNT.itemsize :]
        places, values = body[:where], _values(body[where:], count)
        named = _listed(places, size) if where == count * _INDEX.itemsize else _in_bitmap(places, size)
        if len(named) != count:
            raise StateError("an update names another number of coordinates than it says.")
        return torch.zeros(size, dtype=torch.float64).index_put_((named,), values)


@dataclass(frozen=True)
class SeedFormat(Wire):
    """The values that are kept, in order, and nothing else: the receiver draws the mask itself.

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
        raise StateError("an update holds a value that is not finite.")
    return values


def _listed(places: bytes, size: int) -> Tensor:
    named = torch.from_numpy(np.frombuffer(places, _INDEX).astype(np.int64))
    if len(named) and (named[-1] >= size or not bool((named.diff() > 0).all())):
        raise StateError("an update names coordinates that the model does not have, or one of them twice.")
    return named


def _in_bitmap(places: bytes, size: int) -> Tensor:
    bits = np.unpackbits(np.frombuffer(places, np.uint8))[:size]
    return torch.from_numpy(bits.astype(bool)).nonzero()[:, 0]


def _bitmap_length(size: int) -> int:
    return -(-size // 8)
