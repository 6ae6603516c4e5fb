"""Max pooling of pictures by the kernel that is fast: torch's with channels last takes a fifth of the time.

Pooling acts on each picture of a batch alone, so that `vmap` of it over rows is pooling of a batch of pictures.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.operations import Operation
from sordino.gradients.rowwise import merged, on_rows

aten = torch.ops.aten
_NUMBERS_AT_A_TIME = 1 << 19  # a copy of this size is made in cache

_ARGUMENTS = {"input": None, "kernel_size": None, "stride": None, "padding": 0, "dilation": 1, "ceil_mode": False}
_BIND = Operation(_ARGUMENTS | {"return_indices": False}, lambda *_: None).bind


def max_pool(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What `max_pool2d` gives, or None where this is another function or its indices are wanted."""
    if function is not F.max_pool2d and function is not torch.max_pool2d:
        return None
    given = _BIND(args, kwargs)
    if given["return_indices"] or given["input"].ndim != 4:
        return None
    kernel, padding, dilation = (_pair(given[name]) for name in ("kernel_size", "padding", "dilation"))
    stride = _pair(given["stride"]) if given["stride"] else kernel
    settings = kernel, stride, padding, dilation, bool(given["ceil_mode"])

    def pool(x: Tensor) -> Tensor:
        pooled: Tensor = _MaxPool.apply(x, settings)  # type: ignore[no-untyped-call]
        return pooled

    pooled: Tensor = on_rows(pool, merged(pool, batched_axes=4), given["input"])
    return pooled


def _pair(setting: int | tuple[int, ...] | list[int]) -> list[int]:
    values = [setting] if isinstance(setting, int) else list(setting)
    return values * (2 // len(values))


class _MaxPool(torch.autograd.Function):
    """The largest value of each window. Its gradient goes where it came from."""

    @staticmethod
    def forward(context: Any, x: Tensor, settings: tuple[Any, ...]) -> Tensor:
        pieces = torch.split(x, max(1, _NUMBERS_AT_A_TIME // max(1, x[0].numel()))) if len(x) else (x,)
        pooled = [
            aten.max_pool2d_with_indices(piece.contiguous(memory_format=torch.channels_last), *settings)
            for piece in pieces
        ]
        context.settings = settings
        context.save_for_backward(x, torch.cat([places.contiguous() for _, places in pooled]))
        return torch.cat([values.contiguous() for values, _ in pooled])

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, places = context.saved_tensors
        returned = aten.max_pool2d_with_indices_backward(gradient.contiguous(), x, *context.settings, places)
        return returned, None
