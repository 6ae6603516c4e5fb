"""Cross-entropy, max pooling and attention of all rows at once, by the kernels of plain training instead of `vmap`.

Each of them treats each entry of a batch alone, so that `vmap` over rows equals the operation on a larger batch:

* Cross-entropy: `vmap` would decompose it into a dozen operations. The loss of an example is a sum over its labels, so
  the losses without a reduction, added up within each row, are the losses of the rows.
* Max pooling of images: torch's kernel for the channels-last layout takes a fifth of the time of the default one.
* One-hot vectors: a comparison, in place of a kernel that reads the values to check them.
* Scaled dot-product attention: fused kernels do not hold a value for each pair of places, as `vmap` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.gradients.one_pass import TensorTracker
from sordino.gradients.operations import Operation
from sordino.gradients.rowwise import apply, merged, on_rows

_CROSS_ENTROPY_ARGUMENTS = (
    "input",
    "target",
    "weight",
    "size_average",
    "ignore_index",
    "reduce",
    "reduction",
    "label_smoothing",
)


class CrossEntropyOfRows(TensorTracker):
    """While active, a summed `cross_entropy` of a batch of one inside `vmap` is computed for all rows at once."""

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is not F.cross_entropy:
            return function(*args, **kwargs)
        given = dict(zip(_CROSS_ENTROPY_ARGUMENTS, args, strict=False)) | kwargs
        outputs, target = given.pop("input"), given.pop("target")
        is_sum = given.get("reduction") == "sum" and given.get("size_average") is None and given.get("reduce") is None
        if not is_sum or outputs.ndim < 2 or len(outputs) != 1:
            return function(*args, **kwargs)
        return apply(
            _SumFunction,
            lambda x, labels, reduction: F.cross_entropy(x, labels, **{**given, "reduction": reduction}),
            outputs,
            target,
        )


class _SumFunction(torch.autograd.Function):
    @staticmethod
    def forward(loss: Callable[..., Tensor], outputs: Tensor, target: Tensor) -> Tensor:
        return loss(outputs, target, "sum")

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        """Saves nothing: under `vmap`, torch differentiates the operations of the method `vmap` below."""

    @staticmethod
    def vmap(
        info: Any, axes: tuple[int | None, ...], loss: Callable[..., Tensor], outputs: Tensor, target: Tensor
    ) -> tuple[Tensor, int]:
        _, of_outputs, of_target = axes
        if of_outputs is None or of_target is None:
            each = torch.vmap(lambda x, labels: loss(x, labels, "sum"), in_dims=(of_outputs, of_target))
            return each(outputs, target), 0
        outputs, target = (x.movedim(axis, 0).flatten(0, 1) for x, axis in ((outputs, of_outputs), (target, of_target)))
        return loss(outputs, target, "none").reshape(info.batch_size, -1).sum(dim=1), 0


aten = torch.ops.aten
_VALUES_AT_A_TIME = 1 << 19  # a copy of this size stays in cache

_POOLING_ARGUMENTS = {
    "input": None,
    "kernel_size": None,
    "stride": None,
    "padding": 0,
    "dilation": 1,
    "ceil_mode": False,
}
_BIND = Operation(_POOLING_ARGUMENTS | {"return_indices": False}, lambda *_: None).bind


def max_pool(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The result of a call of `max_pool2d`, or None for another function, or if its indices are requested."""
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


def one_hot(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The result of a call of `one_hot` with a number of classes, or None for any other call.

    Torch reads the values to check their range, which `vmap` cannot. Here a value out of range has no class.
    """
    if function is not F.one_hot:
        return None
    given = dict(zip(("tensor", "num_classes"), args, strict=False)) | kwargs
    values, classes = given.get("tensor", given.get("input")), given.get("num_classes", -1)
    if values is None or classes <= 0:
        return None
    vectors: Tensor = values[..., None] == torch.arange(classes, device=values.device)
    return vectors.to(torch.int64)


def _pair(setting: int | tuple[int, ...] | list[int]) -> list[int]:
    values = [setting] if isinstance(setting, int) else list(setting)
    return values * (2 // len(values))


class _MaxPool(torch.autograd.Function):
    """Max pooling. The gradient of an output goes to the input that was largest in its window.

    Chunks of the batch go through torch's kernels one after the other. The index of an input within its image is kept
    in two or four bytes. Torch keeps eight, which would be half of the memory of a network with small convolutions.
    """

    @staticmethod
    def forward(context: Any, x: Tensor, settings: tuple[Any, ...]) -> Tensor:
        images, values, indices = _images_at_a_time(x), torch.empty(0), torch.empty(0)
        for start in range(0, max(1, len(x)), images):
            chunk = x[start : start + images].contiguous(memory_format=torch.channels_last)
            chunk_values, chunk_indices = aten.max_pool2d_with_indices(chunk, *settings)
            if start == 0:
                shape = len(x), *chunk_values.shape[1:]
                values, indices = x.new_empty(shape), x.new_empty(shape, dtype=_smallest_for(x[:1, :1].numel()))
            values[start : start + images] = chunk_values
            indices[start : start + images] = chunk_indices
        context.settings = settings
        context.save_for_backward(x, indices)
        return values

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, indices = context.saved_tensors
        by_input = torch.empty_like(x, memory_format=torch.contiguous_format)
        chunks = (torch.split(tensor, _images_at_a_time(x)) for tensor in (x, gradient, indices, by_input))
        for chunk, chunk_gradient, chunk_indices, out in zip(*chunks, strict=True):
            aten.max_pool2d_with_indices_backward.grad_input(
                chunk_gradient.contiguous(), chunk, *context.settings, chunk_indices.long(), grad_input=out
            )
        return by_input, None


def _smallest_for(size: int) -> torch.dtype:
    """The smallest integer type for indices below `size`."""
    return torch.int16 if size <= torch.iinfo(torch.int16).max else torch.int32


def _images_at_a_time(x: Tensor) -> int:
    return max(1, _VALUES_AT_A_TIME // max(1, x[:1].numel()))


_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fused(function: Any) -> Any:
    """The replacement for a torch function, or None."""
    return scaled_dot_product_attention if function is F.scaled_dot_product_attention else None


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Torch's function, in which rows with a batch axis become one batch. A kernel treats each entry of a batch alone.

    With dropout the rules of `vmap` are used: a kernel would draw for the whole batch, and each row has its own seed.
    """
    if dropout_p > 0 or not _are_batches(query, key, value, attn_mask):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None:
        with_batch_axis = attn_mask[(None,) * (query.ndim - attn_mask.ndim)]
        attn_mask = with_batch_axis.expand(len(query), *[-1] * (query.ndim - 1))
    result = apply(_OfBatch, query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return cast(Tensor, result)


def _are_batches(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether there is a batch axis before the last two, place and width, and the mask fits to it."""
    return (
        query.ndim == key.ndim == value.ndim >= 3
        and len(query) == len(key) == len(value)
        and (mask is None or mask.ndim < query.ndim or (mask.ndim == query.ndim and len(mask) in (1, len(query))))
    )


class _OfBatch(torch.autograd.Function):
    """Attention in which rows and batch become one axis under `vmap`. Torch chooses the kernel and differentiates it.

    Torch chooses among kernels that support the call: few have a gradient for a mask, or values of another width.
    """

    @staticmethod
    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
    ) -> Tensor:
        with sdpa_kernel(_KERNELS):
            return F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Tensor) -> None:
        """Saves nothing: outside of `vmap`, only a survey calls this function, and differentiates nothing."""

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        rows = info.batch_size
        tensors: list[Any] = [_merged(x, axis, rows) for x, axis in zip(inputs[:4], axes, strict=False)]
        output = _OfBatch.forward(*tensors, *inputs[4:])
        return output.reshape(rows, -1, *output.shape[1:]), 0


def _merged(x: Tensor | None, axis: int | None, rows: int) -> Tensor | None:
    """The tensor with rows and batch as one first axis."""
    if x is None:
        return None
    return (x.expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)).flatten(0, 1)
