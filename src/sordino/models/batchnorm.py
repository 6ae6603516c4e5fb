"""`replace_batchnorm`: group normalization in place of batch normalization, which mixes the examples of a batch."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sordino._input import validate
from sordino.errors import UsageError

_MOST_GROUPS = 32


def replace_batchnorm(model: nn.Module, *, groups: int | None = None) -> nn.Module:
    """Returns a copy of `model` in which every BatchNorm is a GroupNorm with the same channels and affine weights.

    `groups` is the number of groups in every layer. By default it is the largest divisor of the channels, at most 32,
    with at least two channels in a group. Running statistics are dropped, because they were computed from data.

    >>> replace_batchnorm(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))[1]  # doctest: +ELLIPSIS
    GroupNorm(32, 64, eps=1e-05, affine=True...)
    """
    if groups is not None:
        validate.count(groups=groups)
    # A layer that is used twice stays one layer, because deepcopy preserves sharing.
    replaced = {id(layer): _group_norm(name, layer, groups) for name, layer in _batchnorms(model)}
    return copy.deepcopy(model, memo={**replaced})


def _batchnorms(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]


def _group_norm(name: str, layer: _BatchNorm, groups: int | None) -> nn.GroupNorm:
    channels = layer.num_features
    number = _largest_divisor(layer) if groups is None else groups
    if channels == 0 or channels % number:
        raise UsageError(
            f"layer {name!r} ({type(layer).__name__}) has {channels} channels, not a multiple of {number}."
        )
    if channels == number and isinstance(layer, nn.BatchNorm1d):
        # A vector has one position, so a group of one channel would always be zero after subtracting its mean.
        raise UsageError(
            f"layer {name!r} (BatchNorm1d) needs groups of 2 channels or more, got {channels} in {number}."
        )
    normed = nn.GroupNorm(number, channels, eps=layer.eps, affine=layer.affine)
    normed.weight, normed.bias = copy.deepcopy((layer.weight, layer.bias))
    return normed.train(layer.training)


def _largest_divisor(layer: _BatchNorm) -> int:
    if isinstance(layer, nn.BatchNorm1d):
        return 1  # as LayerNorm: groups of few values would keep little more than their signs
    channels = layer.num_features
    pairs = [number for number in range(1, _MOST_GROUPS + 1) if channels % number == 0 and channels // number >= 2]
    return max(pairs, default=1)
