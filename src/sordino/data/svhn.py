"""SVHN, cropped digits: a MATLAB 5 file with X (32, 32, 3, n) in bytes and y (n, 1), where 10 means the digit 0."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino._input.files import read_bytes
from sordino.data.dataset import Split
from sordino.errors import DataError

_LARGEST_FILE = 2 << 30
_PICTURE = (32, 32, 3)


def read_digits(path: Path) -> Split:
    """The pictures (n, 3, 32, 32) and labels of one file."""
    return parse_digits(read_bytes(path, at_most=_LARGEST_FILE), shown=repr(str(path)))


def parse_digits(content: bytes, *, shown: str) -> Split:
    """The pictures and labels of a file's content, with its structure checked before its arrays are read."""
    from scipy.io import loadmat, whosmat

    file: Any = io.BytesIO(content)  # the stubs know paths only
    try:
        declared: dict[str, tuple[tuple[int, ...], str]]
        declared = {name: (tuple(shape), kind) for name, shape, kind in whosmat(file)}
        _check_declared(declared, shown)
        arrays = loadmat(file, variable_names=["X", "y"])
    except DataError:
        raise
    except Exception:  # the reader has no family of errors: a bad file may raise anything
        raise DataError(f"{shown} is not a sound MATLAB 5 file.") from None
    pictures, labels = _array(arrays, "X", shown), _array(arrays, "y", shown)
    if pictures.dtype != np.uint8:
        raise DataError(f"{shown} must have X in uint8, found {pictures.dtype}.")
    digits = labels.reshape(-1).astype(np.int64)
    wrong = (digits != labels.reshape(-1)) | (digits < 1) | (digits > 10)
    if wrong.any():
        raise DataError(f"{shown} has a label outside 1..10 in record {int(wrong.argmax())}.")
    inputs = np.ascontiguousarray(pictures.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(inputs), torch.from_numpy(digits % 10))


def _check_declared(declared: dict[str, tuple[tuple[int, ...], str]], shown: str) -> None:
    if not {"X", "y"} <= declared.keys():
        raise DataError(f"{shown} must hold the arrays X and y, found {sorted(declared)!r:.200}.")
    (pictures, pixels), (labels, _) = declared["X"], declared["y"]
    if len(pictures) != 4 or pictures[:3] != _PICTURE or pictures[3] < 1 or pixels != "uint8":
        raise DataError(f"{shown} must have X of shape (32, 32, 3, n) in uint8, found {pictures} in {pixels}.")
    if labels != (pictures[3], 1):
        raise DataError(f"{shown} must have y of shape ({pictures[3]}, 1), one label for each picture, found {labels}.")


def _array(arrays: dict[str, Any], name: str, shown: str) -> NDArray[Any]:
    array = arrays[name]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise DataError(f"{shown} must have {name} as an array of numbers, found {type(array).__name__}.")
    return array
