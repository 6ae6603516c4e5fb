"""Max pooling of pictures by the kernel that is fast: torch's with channels last takes a fifth of the time.

Pooling acts on each picture of a batch alone, so that `vmap` of it over rows is pooling of a batch of pictures.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.operations import Operation

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
    pooled: Tensor = _MaxPool.apply(given["input"], settings)[0]  # type: ignore[no-untyped-call]
    return pooled


def _pair(setting: int | tuple[int, ...] | list[int]) -> list[int]:
    values = [setting] if isinstance(setting, int) else list(setting)
    return values * (2 // len(values))


class _MaxPool(torch.autograd.Function):
    """The largest value of each window, and where it was."""

    @staticmethod
    def forward(x: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        pieces = torch.split(x, max(1, _NUMBERS_AT_A_TIME // max(1, x[0].numel()))) if len(x) else (x,)
        pooled = [
            aten.max_pool2d_with_indices(piece.contiguous(memory_format=torch.channels_last), *settings)
            for piece in pieces
        ]
        return torch.cat([p.contiguous() for p, _ in pooled]), torch.cat([i.contiguous() for _, i in pooled])

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        context.settings = inputs[1]
        context.mark_non_differentiable(output[1])
        context.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(context: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return _MaxPoolBackward.apply(gradient, *context.saved_tensors, context.settings), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], x: Tensor, settings: tuple[Any, ...]) -> Any:
        outputs = _MaxPool.apply(_as_pictures(x, axes[0], info.batch_size), settings)  # type: ignore[no-untyped-call]
        return tuple(_as_rows(output, info.batch_size) for output in outputs), (0, 0)


class _MaxPoolBackward(torch.autograd.Function):
    """Each gradient goes where the value came from."""

    @staticmethod
    def forward(gradient: Tensor, x: Tensor, places: Tensor, settings: tuple[Any, ...]) -> Tensor:
        returned: Tensor = aten.max_pool2d_with_indices_backward(gradient.contiguous(), x, *settings, places)
        return returned

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """It is not differentiated again."""

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], *inputs: Any) -> Any:
        pictures = [_as_pictures(x, axis, info.batch_size) for x, axis in zip(inputs[:3], axes[:3], strict=True)]
        returned = _MaxPoolBackward.apply(*pictures, inputs[3])  # type: ignore[no-untyped-call]
        return _as_rows(returned, info.batch_size), 0


def _as_pictures(x: Tensor, axis: int | None, rows: int) -> Tensor:
    x = x.expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)
    return x.flatten(0, 1)


def _as_rows(x: Tensor, rows: int) -> Tensor:
    return x.reshape(rows, -1, *x.shape[1:])
