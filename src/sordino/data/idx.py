"""IDX, the format of MNIST: four bytes of magic, a big-endian length per axis, then one byte per entry.

The magic number is 0, 0, the type of the entries (8 for bytes) and the number of axes: 2049 for labels, 2051 for
pictures. A file may be packed with gzip. The header says how long a file has to be, and it has to be just that long.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino._input.files import read_bytes
from sordino.data.archives import gunzip, gunzip_start
from sordino.data.dataset import Split
from sordino.errors import DataError

_LARGEST_FILE = 4 << 30
_LARGEST_GZIP_RATIO = 1032  # what deflate can reach at all
_KINDS = {2049: "labels", 2051: "pictures"}


def read_pictures(pictures: Path, labels: Path) -> Split:
    """Grey pictures (n, 1, rows, columns) and their labels, from the two files that hold them."""
    inputs, target = read_idx(pictures, magic=2051), read_idx(labels, magic=2049)
    if len(inputs) != len(target):
        raise DataError(
            f"{str(pictures)!r} has {len(inputs)} pictures but {str(labels)!r} has {len(target)} labels: "
            "they belong to different sets."
        )
    return Split(inputs.unsqueeze(1), target.to(torch.int64))


def read_idx(path: Path, *, magic: int) -> Tensor:
    """The bytes of an IDX file, packed or not, in the shape that it declares."""
    return parse_idx(read_bytes(path, at_most=_LARGEST_FILE), magic=magic, shown=repr(str(path)))


def parse_idx(content: bytes, *, magic: int, shown: str) -> Tensor:
    """The entries of an IDX file as uint8.

    >>> parse_idx(struct.pack(">II", 2049, 3) + bytes([5, 0, 4]), magic=2049, shown="'labels'")
    tensor([5, 0, 4], dtype=torch.uint8)
    >>> parse_idx(struct.pack(">II", 2049, 3) + bytes([5, 0]), magic=2049, shown="'labels'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'labels' must have 11 bytes for a shape of (3,), found 10.
    """
    header_bytes = 4 + 4 * (magic & 0xFF)
    packed = content.startswith(b"\x1f\x8b")
    header = gunzip_start(content, header_bytes, shown=shown) if packed else content[:header_bytes]
    shape = _shape(header, magic, shown)
    size = header_bytes + math.prod(shape)
    if packed:
        if size > _LARGEST_GZIP_RATIO * len(content):  # before anything is allocated
            raise DataError(f"{shown} declares {size} bytes, which its {len(content)} packed bytes cannot hold.")
        content = gunzip(content, at_most=size, shown=shown)
    if len(content) != size:
        raise DataError(f"{shown} must have {size} bytes for a shape of {shape}, found {len(content)}.")
    entries = np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)
    return torch.from_numpy(entries.copy())  # a tensor may be written to, bytes may not


def _shape(header: bytes, magic: int, shown: str) -> tuple[int, ...]:
    if len(header) < 4:
        raise DataError(f"{shown} ends at byte {len(header)}, within its magic number.")
    (found,) = struct.unpack(">I", header[:4])
    if found != magic:
        expected, given = (f"{m} ({_KINDS[m]})" if m in _KINDS else str(m) for m in (magic, found))
        raise DataError(f"{shown} must start with the magic number {expected}, found {given}.")
    axes = magic & 0xFF
    if len(header) < 4 + 4 * axes:
        raise DataError(f"{shown} ends at byte {len(header)}, within its header of {4 + 4 * axes} bytes.")
    shape: tuple[int, ...] = struct.unpack(f">{axes}I", header[4:])
    if 0 in shape:
        raise DataError(f"{shown} is empty: its header declares a shape of {shape}.")
    return shape
