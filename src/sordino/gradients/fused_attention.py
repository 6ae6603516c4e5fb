"""Scaled dot-product attention of all rows at once, by the kernels of plain training.

They never hold a number per pair of places, as `vmap`'s own way does.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sordino.gradients.rowwise import apply

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
        with_batch_axis = attn_mask[(None,) * (query.ndim - attn_mask.ndim)]
        attn_mask = with_batch_axis.expand(len(query), *[-1] * (query.ndim - 1))
    result = apply(_OfBatch, query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return cast(Tensor, result)


def _are_batches(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether there is a batch axis in front of the last two, place and width, and the mask fits it."""
    return (
        query.ndim == key.ndim == value.ndim >= 3
        and len(query) == len(key) == len(value)
        and (mask is None or mask.ndim < query.ndim or (mask.ndim == query.ndim and len(mask) in (1, len(query))))
    )


class _OfBatch(torch.autograd.Function):
    """Under `vmap` rows and batch become one axis; what is left is torch's to compute, to differentiate and to choose.

    It takes a kernel that can do what is asked: few have a gradient for a mask, or values of another width.
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
        output = _OfBatch.forward(*tensors, *inputs[4:])
        return output.reshape(rows, -1, *output.shape[1:]), 0


def _merged(x: Tensor | None, axis: int | None, rows: int) -> Tensor | None:
    """Rows and batch as one axis in front."""
    if x is None:
        return None
    return (x.expand(rows, *x.shape) if axis is None else x.movedim(axis, 0)).flatten(0, 1)
