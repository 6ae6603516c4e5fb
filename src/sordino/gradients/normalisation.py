"""Layer, group, instance and root-mean-square normalisation: a scale and a shift after something without parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, Instantiated
from sordino.gradients.rules import Tag


@dataclass(frozen=True)
class LastAxesNorm:
    """`layer_norm` and `rms_norm`: the parameters have the shape of the last axes."""

    names: tuple[str | None, str | None]
    axes: int
    root_mean_square: bool

    @classmethod
    def recognise_layer_norm(cls, arguments: dict[str, Any], name_of: Any) -> LastAxesNorm:
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, len(arguments["normalized_shape"]), False)

    @classmethod
    def recognise_rms_norm(cls, arguments: dict[str, Any], name_of: Any) -> LastAxesNorm:
        return cls((name_of(arguments["weight"]), None), len(arguments["normalized_shape"]), True)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x, shape, eps = arguments["input"], arguments["normalized_shape"], arguments["eps"]
        normal = F.rms_norm(x, shape, eps=eps) if self.root_mean_square else F.layer_norm(x, shape, eps=eps)
        scaled = normal if arguments["weight"] is None else normal * arguments["weight"]
        bias = arguments.get("bias")
        return tag(scaled if bias is None else scaled + bias), normal

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        normal, g = (x.reshape(len(x), -1, *x.shape[x.ndim - self.axes :]) for x in (saved, output_gradient))
        weight = Instantiated((normal * g).sum(dim=1).flatten(1)) if self.names[0] else None
        return weight, Instantiated(g.sum(dim=1).flatten(1)) if self.names[1] else None


@dataclass(frozen=True)
class ChannelNorm:
    """`group_norm` and `instance_norm` without running statistics: one parameter per channel."""

    names: tuple[str | None, str | None]
    groups: int

    @classmethod
    def recognise_group_norm(cls, arguments: dict[str, Any], name_of: Any) -> ChannelNorm:
        return cls((name_of(arguments["weight"]), name_of(arguments["bias"])), arguments["num_groups"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        normal = F.group_norm(x, self.groups, eps=arguments["eps"])
        per_channel = (-1, *[1] * (x.ndim - 2))
        weight, bias = arguments["weight"], arguments["bias"]
        scaled = normal if weight is None else normal * weight.reshape(per_channel)
        return tag(scaled if bias is None else scaled + bias.reshape(per_channel)), normal

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        normal, g = (x.reshape(len(x), x.shape[2], -1) for x in (saved, output_gradient))
        weight = Instantiated((normal * g).sum(dim=2)) if self.names[0] else None
        return weight, Instantiated(g.sum(dim=2)) if self.names[1] else None
