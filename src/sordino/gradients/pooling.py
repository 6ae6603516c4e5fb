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
    """The largest value of each window. Its gradient goes where it came from.

    Pieces of the batch go through torch's kernels one by one. Between the passes a place within a picture takes two
    bytes, or four, where torch has eight: of a network with small convolutions they would be half of the memory.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, settings: tuple[Any, ...]) -> Tensor:
        pictures, values, places = _pictures_at_a_time(x), torch.empty(0), torch.empty(0)
        for start in range(0, max(1, len(x)), pictures):
            piece = x[start : start + pictures].contiguous(memory_format=torch.channels_last)
            of_values, of_places = aten.max_pool2d_with_indices(piece, *settings)
            if start == 0:
                shape = len(x), *of_values.shape[1:]
                values, places = x.new_empty(shape), x.new_empty(shape, dtype=_smallest_for(x[:1, :1].numel()))
            values[start : start + pictures] = of_values
            places[start : start + pictures] = of_places
        context.settings = settings
        context.save_for_backward(x, places)
        return values

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, places = context.saved_tensors
        returned = torch.empty_like(x, memory_format=torch.contiguous_format)
        pieces = (torch.split(tensor, _pictures_at_a_time(x)) for tensor in (x, gradient, places, returned))
        for piece, of_gradient, of_places, out in zip(*pieces, strict=True):
            aten.max_pool2d_with_indices_backward.grad_input(
                of_gradient.contiguous(), piece, *context.settings, of_places.long(), grad_input=out
            )
        return returned, None


def _smallest_for(numbers: int) -> torch.dtype:
    return torch.int16 if numbers <= torch.iinfo(torch.int16).max else torch.int32


def _pictures_at_a_time(x: Tensor) -> int:
    return max(1, _NUMBERS_AT_A_TIME // max(1, x[:1].numel()))
