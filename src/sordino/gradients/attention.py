"""`MultiheadAttention` as separate operations, so that its projections are linear operations that the tape knows."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.projections import projections

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


def written_out(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call of `multi_head_attention_forward` by name, or None for any other call.

    None also for arguments that torch refuses, so that torch raises its own error.
    """
    if function is not F.multi_head_attention_forward:
        return None
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    is_static = given["static_k"] is not None or given["static_v"] is not None
    is_refused = given["is_causal"] and given["attn_mask"] is None
    return None if is_static or is_refused else given


def attend(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """softmax(Q K^T / sqrt(width) + mask) V for each head, then the output projection. Axes: place, row, feature."""
    if given["query"].ndim == 2:
        output, weights = attend(_as_batch_of_one(given))
        return output.squeeze(1), None if weights is None else weights.squeeze(0)
    query, key, value = _projected(given)
    key, value = (_extended(x, given, bias) for x, bias in ((key, "bias_k"), (value, "bias_v")))
    mask = _mask(given, added_keys=len(key) - len(given["key"]))
    query, key, value = (_by_head(x, given["num_heads"]) for x in (query, key, value))
    dropout = given["dropout_p"] if given["training"] else 0.0
    if given["need_weights"]:
        mixed, weights = _mixed_values(query, key, value, mask, dropout)
    else:
        weights, causal = None, mask is None and given["is_causal"]
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    output = F.linear(mixed.permute(2, 0, 1, 3).flatten(2), given["out_proj_weight"], given["out_proj_bias"])
    return output, weights.mean(dim=1) if weights is not None and given["average_attn_weights"] else weights


def _as_batch_of_one(given: dict[str, Any]) -> dict[str, Any]:
    """Adds a batch axis. Arguments that are one tensor stay one tensor, because `_projected` compares identities."""
    rows = {id(given[name]): given[name].unsqueeze(1) for name in ("query", "key", "value")}
    padding = given["key_padding_mask"]
    return given | {
        **{name: rows[id(given[name])] for name in ("query", "key", "value")},
        "key_padding_mask": None if padding is None else padding.unsqueeze(0),
    }


def _projected(given: dict[str, Any]) -> tuple[Tensor, ...]:
    """The projections: one linear operation in self-attention, two if key and value are one tensor, else three."""
    query, key, value, bias = (given[name] for name in ("query", "key", "value", "in_proj_bias"))
    features = query.shape[-1]
    if given["use_separate_proj_weight"]:
        weights = tuple(given[name] for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"))
        return tuple(projections((query, key, value), weights, bias, [features] * 3))
    weight = given["in_proj_weight"]
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, dim=-1)
    if key is value:
        query, both = projections((query, key), (weight,), bias, [features, 2 * features])
        return query, *both.chunk(2, dim=-1)
    return tuple(projections((query, key, value), (weight,), bias, [features] * 3))


def _extended(x: Tensor, given: dict[str, Any], bias: str) -> Tensor:
    """Keys or values, followed by a learned one and a zero if the layer has these options."""
    _, rows, features = x.shape
    learned = [] if given[bias] is None else [given[bias].repeat(1, rows, 1)]
    zero = [x.new_zeros(1, rows, features)] if given["add_zero_attn"] else []
    return torch.cat([x, *learned, *zero]) if learned or zero else x


def _by_head(x: Tensor, heads: int) -> Tensor:
    places, rows, _ = x.shape
    return x.reshape(places, rows, heads, -1).permute(1, 2, 0, 3)


def _mask(given: dict[str, Any], added_keys: int) -> Tensor | None:
    """The additive mask of the scores, with axes row, head, query and key, or None. Added keys are never masked."""
    padding, mask = (_additive(given[name], added_keys, given) for name in ("key_padding_mask", "attn_mask"))
    if mask is not None and mask.ndim == 3:
        mask = mask.reshape(-1, given["num_heads"], *mask.shape[1:])
    if padding is None:
        is_left_to_kernel = given["is_causal"] and not given["need_weights"]
        return None if is_left_to_kernel else mask
    padding = padding[:, None, None]
    return padding if mask is None else mask + padding


def _additive(mask: Tensor | None, added_keys: int, given: dict[str, Any]) -> Tensor | None:
    """The mask as values to add: a boolean mask is True where a key is masked, which becomes -inf."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=given["query"].dtype).masked_fill(mask, -math.inf)
    return mask if mask is None or added_keys == 0 else F.pad(mask, (0, added_keys))


def _mixed_values(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """The weighted values, and the attention weights. Axes: row, head, place, width."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    weights = F.dropout((scores if mask is None else scores + mask).softmax(dim=-1), dropout)
    return weights @ value, weights
