"""Scaled dot-product attention of all rows at once, by the kernels of plain training.

They never hold a number per pair of places, as `vmap`'s own way does.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fused(function: Any) -> Any:
    """What stands in for a function of torch here, or None."""
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
    """As torch has it, but rows that have a batch axis become one batch. A kernel treats each entry of a batch alone.

    Dropout is left to `vmap`: a kernel would draw for the whole batch, and each row has a seed of its own.
    """
    if dropout_p > 0 or not _are_batches(query, key, value, attn_mask):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.ndim)].expand(len(query), -1, -1, -1)
    result = _OfBatch.apply(query, key, value, attn_mask, is_causal, scale, enable_gqa)  # type: ignore[no-untyped-call]
    return cast(Tensor, result)


def _are_batches(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the axes are batch, head, place and width, and those of the mask fit."""
    return (
        query.ndim == key.ndim == value.ndim == 4
        and len(query) == len(key) == len(value)
        and (mask is None or mask.ndim < 4 or (mask.ndim == 4 and len(mask) in (1, len(query))))
    )


class _OfBatch(torch.autograd.Function):
    """Under `vmap`, however deep, rows and batch become one axis; what is left is torch's to compute and differentiate.

    Only there can a kernel see whether the mask is learned, which most of them do not support.
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
        """Outside of `vmap` only a survey calls it, which differentiates nothing."""

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        rows = info.batch_size
        tensors: list[Any] = [_merged(x, axis, rows) for x, axis in zip(inputs[:4], axes, strict=False)]
        is_inner = any(x is not None and is_functorch_wrapped_tensor(x) for x in tensors)
        attend = _OfBatch.apply if is_inner else _OfBatch.forward
        output = attend(*tensors, *inputs[4:])
        return output.reshape(rows, -1, *output.shape[1:]), 0


def _merged(x: Tensor | None, axis: int | None, rows: int) -> Tensor | None:
    """Rows and batch as one axis in front."""
    if x is None:
        return None
    return (x.expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)).flatten(0, 1)
