"""The binary version of CIFAR-10: records of 3,073 bytes, a label and then the red, green and blue planes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from sordino._input.files import read_bytes
from sordino.data.dataset import Split
from sordino.errors import DataError

_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_NUM_CLASSES = 10
_LARGEST_FILE = 1 << 30


def read_batches(paths: Sequence[Path]) -> Split:
    """The pictures (n, 3, 32, 32) and labels of some files, one after the other."""
    batches = [parse_batch(read_bytes(path, at_most=_LARGEST_FILE), shown=repr(str(path))) for path in paths]
    return Split(torch.cat([batch.inputs for batch in batches]), torch.cat([batch.target for batch in batches]))


def parse_batch(content: bytes, *, shown: str) -> Split:
    """The records of one file.

    >>> batch = parse_batch(bytes([7]) + bytes(3072), shown="'batch'")
    >>> batch.inputs.shape, batch.target
    (torch.Size([1, 3, 32, 32]), tensor([7]))
    """
    if not content or len(content) % _RECORD_BYTES:
        raise DataError(f"{shown} must hold records of {_RECORD_BYTES} bytes, found {len(content)} bytes in all.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    labels = records[:, 0]
    if (labels >= _NUM_CLASSES).any():
        first = int((labels >= _NUM_CLASSES).argmax())
        raise DataError(f"{shown} has a label outside 0..{_NUM_CLASSES - 1} in record {first}: not a CIFAR-10 file.")
    pictures = torch.from_numpy(records[:, 1:].copy()).reshape(-1, *_SHAPE)
    return Split(pictures, torch.from_numpy(labels.astype(np.int64)))
