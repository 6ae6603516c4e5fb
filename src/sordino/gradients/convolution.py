"""Convolutions in one, two and three dimensions, with stride, padding, dilation and groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, Instantiated, held_in
from sordino.gradients.rowwise import merged, on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag
from sordino.gradients.windows import Window

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Convolution(MultipliesAsItRan):
    """y[o, t] = sum over offsets k and channels c of W[o, c, k] x[c, stride * t + dilation * k]."""

    names: tuple[str | None, str | None]
    window: Window

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Convolution:
        kernel = tuple(arguments["weight"].shape[2:])
        dilation = _spread(arguments["dilation"], len(kernel))
        stride, padding = _spread(arguments["stride"], len(kernel)), _padding(arguments["padding"], kernel, dilation)
        window = Window(kernel, stride, padding, dilation, arguments["groups"])
        return cls((name_of(arguments["weight"]), name_of(arguments["bias"])), window)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x, axes = arguments["input"], len(self.window.kernel)
        settings = {name: arguments[name] for name in ("stride", "padding", "dilation", "groups")}
        convolve = partial(_CONVOLUTIONS[axes], **settings)
        output = tag(on_rows(convolve, merged(convolve, axes + 2), x, arguments["weight"], arguments["bias"]))
        return output, x.to(output.dtype)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        axes = len(self.window.kernel)
        x, g = (each.reshape(len(each), -1, *each.shape[-axes - 1 :]) for each in (saved, output_gradient))
        weight = self._weight(x, g) if self.names[0] else None
        bias = Instantiated(g.flatten(3).sum(dim=(1, 3), dtype=held_in(g.dtype))) if self.names[1] else None
        return weight, bias

    def _weight(self, x: Tensor, g: Tensor) -> Block:
        """Axes: row, picture of the row, channel, place. Most rows have one picture."""
        pictures = x.shape[1]
        if pictures == 1:
            return self.window.patches(x[:, 0], g[:, 0])
        if len(self.window.kernel) < len(_CONVOLUTIONS):
            return self.window.with_still_axis().patches(x.movedim(1, -1), g.movedim(1, -1))
        starts = tuple(range(0, len(x) * pictures + 1, pictures))
        return self.window.patches(x.flatten(0, 1), g.flatten(0, 1)).of_units(starts)


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
