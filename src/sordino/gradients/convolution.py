"""Convolutions in one, two and three dimensions, with stride, padding, dilation and groups."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.rules import Block, Instantiated, Tag, squared_norms

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_MANY_CHANNELS, _MANY_PLACES = 16, 128  # from here on patches are better not copied


@dataclass(frozen=True)
class Convolution:
    """y[o, t] = sum over offsets k and channels c of W[o, c, k] x[c, stride * t + dilation * k]."""

    names: tuple[str | None, str | None]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Convolution:
        kernel = tuple(arguments["weight"].shape[2:])
        dilation = _spread(arguments["dilation"], len(kernel))
        return cls(
            (name_of(arguments["weight"]), name_of(arguments["bias"])),
            kernel,
            _spread(arguments["stride"], len(kernel)),
            _padding(arguments["padding"], kernel, dilation),
            dilation,
            arguments["groups"],
        )

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x = arguments["input"]
        settings = {name: arguments[name] for name in ("stride", "padding", "dilation", "groups")}
        return tag(_CONVOLUTIONS[len(self.kernel)](x, arguments["weight"], arguments["bias"], **settings)), x

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        axes = len(self.kernel)
        x = saved.reshape(len(saved), *saved.shape[-axes - 1 :])
        g = output_gradient.reshape(len(x), *output_gradient.shape[-axes - 1 :])
        weight = self._weight_block(x, g) if self.names[0] else None
        bias = Instantiated(g.flatten(2).sum(dim=2)) if self.names[1] else None
        return weight, bias

    def _weight_block(self, x: Tensor, g: Tensor) -> Instantiated | Permuted:
        """sum_t g[r, o, t] x[r, c, stride * t + dilation * k]: as many operations as plain training needs."""
        x = F.pad(x, [side for pair in reversed(self.padding) for side in pair]) if self._is_padded else x
        slides = set(self.stride) == {1} and self.groups == 1 and x.shape[1] >= _MANY_CHANNELS
        return self._sliding(x, g) if slides and prod(g.shape[2:]) >= _MANY_PLACES else self._unfolded(x, g)

    def _unfolded(self, x: Tensor, g: Tensor) -> Instantiated:
        """One product of matrices per row and group, with the patches of the input laid out as columns."""
        rows = len(x)
        columns = self._columns(x, g.shape[2:]).reshape(rows * self.groups, -1, prod(g.shape[2:]))
        outputs = g.reshape(rows * self.groups, -1, columns.shape[2])
        return Instantiated(torch.bmm(outputs, columns.transpose(1, 2)).reshape(rows, -1))

    def _columns(self, x: Tensor, places: tuple[int, ...]) -> Tensor:
        if len(self.kernel) == 2:
            return F.unfold(x, self.kernel, dilation=self.dilation, stride=self.stride)
        return torch.stack([self._shifted(x, offset, places) for offset in self._offsets()], dim=2).flatten(1, 2)

    def _shifted(self, x: Tensor, offset: tuple[int, ...], places: tuple[int, ...]) -> Tensor:
        """The inputs that meet the kernel's `offset`, at all places: (row, channel, place)."""
        start = (k * d for k, d in zip(offset, self.dilation, strict=True))
        cuts = (slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(start, self.stride, places, strict=True))
        return x[(slice(None), slice(None), *cuts)].flatten(2)

    def _sliding(self, x: Tensor, g: Tensor) -> Permuted:
        """With stride 1 a shift by an offset is a shift of the flattened picture, so that no patch is copied.

        The output's gradient is laid out with the rows of the padded input; what it has beyond its own width is zero.
        """
        rows, channels, *sizes = x.shape
        outputs, places = g.shape[1], g.shape[2:]
        spare = [(0, size - place) for size, place in zip(sizes, places, strict=True)]
        spare[0] = (0, 0)  # the slowest axis needs no filling
        laid_out = F.pad(g, [side for pair in reversed(spare) for side in pair]).flatten(2)
        length = laid_out.shape[2]
        strides = [d * prod(sizes[axis + 1 :]) for axis, d in enumerate(self.dilation)]
        steps = [sum(k * s for k, s in zip(offset, strides, strict=True)) for offset in self._offsets()]
        flat = F.pad(x.flatten(2), (0, max(0, max(steps) + length - prod(sizes))))
        gradients = x.new_empty(len(steps), rows, outputs, channels)
        for k, step in enumerate(steps):
            torch.bmm(laid_out, flat[:, :, step : step + length].transpose(1, 2), out=gradients[k])
        return Permuted(gradients)

    def _offsets(self) -> list[tuple[int, ...]]:
        return list(product(*(range(size) for size in self.kernel)))

    @property
    def _is_padded(self) -> bool:
        return any(side for pair in self.padding for side in pair)


@dataclass(frozen=True, repr=False)
class Permuted:
    """Gradients by offset, row, output and channel: what is summed over rows is put in order afterwards."""

    by_offset: Tensor

    def squared_norms(self) -> Tensor:
        offsets, rows = self.by_offset.shape[:2]
        return squared_norms(self.by_offset.reshape(offsets * rows, -1)).reshape(offsets, rows).sum(dim=0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        sums = torch.matmul(weights.to(self.by_offset.dtype), self.by_offset.flatten(2))
        return sums.T.flatten()

    def dense(self) -> Tensor:
        return self.by_offset.permute(1, 2, 3, 0).flatten(1)


def _spread(setting: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return (setting,) * axes if isinstance(setting, int) else tuple(setting) * (axes // len(tuple(setting)))


def _padding(
    setting: int | str | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if setting == "valid":
        return ((0, 0),) * len(kernel)
    if setting == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((side, side) for side in _spread(setting, len(kernel)))  # type: ignore[arg-type]
