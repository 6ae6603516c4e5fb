"""Reading and writing of safetensors files, whose header is checked before any memory is allocated.

The format cannot contain code. A hostile file may claim more bytes than it has, hold unexpected tensors, or use the
same bytes under two names. So a reader passes the names, shapes and dtypes that it expects, and the header must match.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sordino._input.files import read_bytes, write_atomically
from sordino.errors import DataError, StateError

_LARGEST_FILE = 1 << 36
_LARGEST_HEADER = 1 << 24
_MOST_TENSORS = 50_000
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorFile:
    """Content of a file: tensors by name, and strings by name (its metadata)."""

    tensors: dict[str, Tensor]
    texts: dict[str, str]


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str] | None = None, *, private: bool = False
) -> None:
    """Writes tensors, and `texts` as metadata, atomically.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save_tensors(path, {"weight": torch.ones(2)}, {"made by": "an example"})
    >>> load_tensors(path).tensors["weight"], load_tensors(path).texts
    (tensor([1., 1.]), {'made by': 'an example'})
    """
    # safetensors refuses tensors that share memory, as tied weights do: each name gets its own copy.
    copies = {name: x.detach().to("cpu", copy=True).contiguous() for name, x in tensors.items()}
    write_atomically(path, safetensors.torch.save(copies, dict(texts or {})), private=private)


def load_tensors(path: Path, like: Mapping[str, Tensor] | None = None) -> TensorFile:
    """Reads a file of finite values. With `like`, its names, shapes and dtypes must be exactly those of `like`."""
    try:
        content = read_bytes(path, at_most=_LARGEST_FILE)
    except DataError as error:
        raise StateError(str(error)) from None
    entries, texts = _checked_header(content, path)
    if like is not None:
        _compare(entries, like, path)
    tensors = safetensors.torch.load(content)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise StateError(f"{_shown(path)}: {name!r} has values that are not finite.")
    return TensorFile(tensors, texts)


def _checked_header(
    content: bytes, path: Path
) -> tuple[dict[str, tuple[torch.dtype, tuple[int, ...]]], dict[str, str]]:
    """Returns dtype and shape of each name, and the metadata. The tensors must fill the file without gaps."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_LARGEST_HEADER, len(content) - 8):
        raise StateError(f"{_shown(path)} is not a safetensors file of Sordino: its header is longer than the file.")
    header = _parsed(content[8 : 8 + length], path)
    texts = header.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise StateError(f"{_shown(path)}: the metadata must be strings by name.")
    if len(header) > _MOST_TENSORS:
        raise StateError(f"{_shown(path)} has {len(header)} tensors, at most {_MOST_TENSORS} are allowed.")
    spans = {name: _checked_entry(name, entry, path) for name, entry in header.items()}
    position = 0
    for name, (_, _, start, stop) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if start != position:
            raise StateError(f"{_shown(path)}: {name!r} starts at byte {start}, expected at {position}.")
        position = stop
    if position != len(content) - 8 - length:
        found = len(content) - 8 - length
        raise StateError(f"{_shown(path)} has {found} bytes of tensors, its header declares {position}.")
    return {name: (dtype, shape) for name, (dtype, shape, _, _) in spans.items()}, texts


def _parsed(header: bytes, path: Path) -> dict[str, Any]:
    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a duplicate name")
        return dict(pairs)

    try:
        parsed = json.loads(header, object_pairs_hook=without_repetition)
    except (ValueError, RecursionError):
        raise StateError(f"{_shown(path)} is not a safetensors file: its header is not plain JSON.") from None
    if not isinstance(parsed, dict):
        raise StateError(f"{_shown(path)} is not a safetensors file: its header is not a JSON object.")
    return parsed


def _checked_entry(name: str, entry: object, path: Path) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    refusal = StateError(f"{_shown(path)}: the entry of {name!r:.80} is malformed.")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise refusal
    dtype, shape, offsets = _DTYPES.get(str(entry["dtype"])), entry["shape"], entry["data_offsets"]
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if dtype is None or not all(type(x) is int and x >= 0 for x in numbers):
        raise refusal
    if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
        raise refusal
    return dtype, tuple(shape), offsets[0], offsets[1]


def _compare(found: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], like: Mapping[str, Tensor], path: Path) -> None:
    """Raises on the first difference from `like`."""
    for name, tensor in like.items():
        expected = (tensor.dtype, tuple(tensor.shape))
        if name not in found:
            raise StateError(f"{_shown(path)} belongs to another model: it has no tensor {name!r}.")
        if found[name] != expected:
            raise StateError(
                f"{_shown(path)} belongs to another model: {name!r} is {found[name][0]} of shape {found[name][1]}, "
                f"expected {expected[0]} of shape {expected[1]}."
            )
    for name in found:
        if name not in like:
            raise StateError(f"{_shown(path)} belongs to another model: it has an unexpected tensor {name!r:.80}.")


def _shown(path: Path) -> str:
    return repr(str(path))
