"""Constants of what a script computes: by value, so that it can be seen whether they change."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sordino.errors import UsageError

_COPIED = 2**16  # tensors of at most so many numbers are copied when they are used
_public: Any = WeakTensorKeyDictionary()
_known_contents: Any = WeakTensorKeyDictionary()

Value = TypeVar("Value", float, int, Tensor)


def public(value: Value) -> Value:
    """Declares a number or a tensor of the loss to be public, so that it may change from step to step.

    Once a script has read a value of a batch, its loss keeps its constants, because nobody can see which of them were
    computed from that value. Those which were not are declared where the loss uses them. Nothing checks that it is so.

    >>> warm_up = [public(step / 10) for step in range(10)]
    >>> 3 * warm_up[5]
    1.5
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, Tensor)) or hasattr(value, "node"):
        raise UsageError(f"a number or a tensor that is not of a batch can be public, got {type(value).__name__}.")
    if isinstance(value, Tensor):
        _public[value] = True
        return value
    return _PublicInt(value) if isinstance(value, int) else _PublicFloat(value)


class _PublicFloat(float):
    """A number that was declared to be public. What is computed from it is not."""


class _PublicInt(int):
    """A whole number that was declared to be public."""


@dataclass(frozen=True, eq=False)
class ScriptConstant:
    """A tensor that is not of the batch, as it was when the script used it."""

    tensor: Tensor
    version: int | None
    is_public: bool

    @classmethod
    def of(cls, value: Any) -> Any:
        """A copy of a small tensor or an array; a large one with its version; anything else as it is."""
        if isinstance(value, np.ndarray):
            return value.copy()
        if not isinstance(value, Tensor):
            return value
        if value.numel() <= _COPIED or value.is_inference():
            return cls(value.detach().clone(), None, value in _public)
        return cls(value, value._version, value in _public)

    def value(self) -> Tensor:
        if self.version is not None and self.tensor._version != self.version:
            raise UsageError("a tensor that the loss uses was changed in place before backward(): use a copy of it.")
        return self.tensor.detach()


def is_public(value: Any) -> bool:
    return value.is_public if isinstance(value, ScriptConstant) else isinstance(value, (_PublicFloat, _PublicInt))


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, np.generic)) and not isinstance(value, (bool, np.bool_))


def appearance(value: Any) -> Any:
    """Mark of a constant: its contents, or that it was declared public."""
    if is_public(value):
        return "public"
    if isinstance(value, ScriptConstant):
        return contents(value.tensor)
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), value.tobytes()
    return type(value).__name__, repr(value)


def contents(tensor: Tensor) -> Any:
    """Shape, type and a digest of the numbers of a tensor. That of a large one is remembered until it is changed."""
    if tensor in _public:
        return "public"
    version = None if tensor.is_inference() or tensor.numel() <= _COPIED else tensor._version
    known = None if version is None else _known_contents.get(tensor)
    if known is None or known[0] != version:
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.blake2b(values.numpy().tobytes(), digest_size=16).hexdigest()
        known = version, (tuple(tensor.shape), str(tensor.dtype), digest)
        if version is not None:
            _known_contents[tensor] = known
    return known[1]
