"""`MultiheadAttention` written out, so that its projections are linear operations that the tape knows."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def written_out(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a self-attention of the plain kind, or None: everything else keeps torch's own way."""
    if function is not F.multi_head_attention_forward:
        return None
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    is_plain = (
        given["query"] is given["key"]
        and given["key"] is given["value"]
        and given["query"].ndim == 3
        and not given["use_separate_proj_weight"]
        and not given["add_zero_attn"]
        and all(given[name] is None for name in ("bias_k", "bias_v", "key_padding_mask", "static_k", "static_v"))
        and (given["attn_mask"] is None or given["attn_mask"].ndim == 2)
    )
    return given if is_plain else None


def attend(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """softmax(Q K^T / sqrt(width) + mask) V for each head, then the output projection. Axes: place, row, feature."""
    x, heads = given["query"], given["num_heads"]
    places, rows, features = x.shape
    width = features // heads
    projected = F.linear(x, given["in_proj_weight"], given["in_proj_bias"])
    by_head = projected.reshape(places, rows, 3, heads, width).permute(2, 1, 3, 0, 4)
    query, key, value = by_head[0], by_head[1], by_head[2]
    scores = query @ key.transpose(-2, -1) / math.sqrt(width)
    mask = given["attn_mask"]
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = F.dropout(scores.softmax(dim=-1), given["dropout_p"], given["training"])
    mixed = (weights @ value).permute(2, 0, 1, 3).reshape(places, rows, features)
    output = F.linear(mixed, given["out_proj_weight"], given["out_proj_bias"])
    if not given["need_weights"]:
        return output, None
    return output, weights.mean(dim=1) if given["average_attn_weights"] else weights
