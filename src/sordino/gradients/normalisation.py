"""Layer, group, instance and root-mean-square normalisation: a scale and a shift after something without parameters."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, Instantiated
from sordino.gradients.rowwise import merged, on_rows
from sordino.gradients.rules import Tag


@dataclass(frozen=True)
class LayerNorm:
    """The parameters have the shape of the last axes."""

    names: tuple[str | None, str | None]
    shape: tuple[int, ...]
    eps: float

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> LayerNorm:
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, tuple(arguments["normalized_shape"]), arguments["eps"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        return tag(on_rows(self._norm, self._norm, x, arguments["weight"], arguments["bias"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """What is normalised is computed once more rather than kept, which would cost memory."""
        g = output_gradient.reshape(len(saved), -1, prod(self.shape))
        weight = Instantiated((self._norm(saved).reshape(g.shape) * g).sum(dim=1)) if self.names[0] else None
        return weight, Instantiated(g.sum(dim=1)) if self.names[1] else None

    def _norm(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.layer_norm(x, self.shape, weight, bias, self.eps)


@dataclass(frozen=True)
class RMSNorm:
    """The same without a mean and without a shift."""

    names: tuple[str | None]
    shape: tuple[int, ...]
    eps: float | None

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> RMSNorm:
        return cls((name_of(arguments["weight"]),), tuple(arguments["normalized_shape"]), arguments["eps"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        return tag(on_rows(self._norm, self._norm, x, arguments["weight"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        g = output_gradient.reshape(len(saved), -1, prod(self.shape))
        return (Instantiated((self._norm(saved).reshape(g.shape) * g).sum(dim=1)),)

    def _norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.rms_norm(x, self.shape, weight, self.eps)


@dataclass(frozen=True)
class ChannelNorm:
    """`group_norm`, and `instance_norm` without running statistics: one parameter per channel."""

    names: tuple[str | None, str | None]
    groups: int
    eps: float

    @classmethod
    def recognise_group_norm(cls, arguments: dict[str, Any], name_of: Any) -> ChannelNorm:
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, arguments["num_groups"], arguments["eps"])

    @classmethod
    def recognise_instance_norm(cls, arguments: dict[str, Any], name_of: Any) -> ChannelNorm | None:
        """Each channel is a group of its own. Statistics that a model keeps would not be those of the row."""
        if not arguments["use_input_stats"] or arguments["running_mean"] is not None:
            return None
        names = name_of(arguments["weight"]), name_of(arguments["bias"])
        return cls(names, arguments["input"].shape[1], arguments["eps"])

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        of_rows = merged(self._norm, batched_axes=x.ndim)
        return tag(on_rows(self._norm, of_rows, x, arguments["weight"], arguments["bias"])), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """Axes of `g`: row, picture of the row, channel, place. Each picture has statistics of its own."""
        g = output_gradient.reshape(*output_gradient.shape[:3], -1)
        weight, bias = None, Instantiated(g.sum(dim=(1, 3))) if self.names[1] else None
        if self.names[0]:
            weight = Instantiated((self._norm(saved.flatten(0, 1)).reshape(g.shape) * g).sum(dim=(1, 3)))
        return weight, bias

    def _norm(self, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return F.group_norm(x, self.groups, weight, bias, self.eps)
