"""The rule of transposed convolutions in one, two and three dimensions.

A transposed convolution is the gradient of a convolution by its input. So its weight has the gradient of a convolution
whose input is the output gradient here, and whose output gradient is the input here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import Block, DenseBlock, held_in
from sordino.gradients.convolution import Window, per_axis
from sordino.gradients.rowwise import merged, on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag
from sordino.gradients.views import Name

_CONVOLUTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@dataclass(frozen=True)
class TransposedConvolution(MultipliesAsItRan):
    """The rule of y[o, stride * t + dilation * k] = sum over channels c of W[c, o, k] x[c, t], summed over t and k.

    Of y, `padding` values are cut off on each side, and `output_padding` fewer at the end.
    """

    names: tuple[Name | None, Name | None]
    window: Window

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> TransposedConvolution:
        """The window is that of the convolution with input and output exchanged.

        A padding may be negative: then values of y that no place reaches are left out.
        """
        kernel = tuple(arguments["weight"].shape[2:])
        stride, padding, added, dilation = (
            per_axis(arguments[name], len(kernel)) for name in ("stride", "padding", "output_padding", "dilation")
        )
        sides = tuple((side, side - more) for side, more in zip(padding, added, strict=True))
        window = Window(kernel, stride, sides, dilation, arguments["groups"])
        return cls((name_of(arguments["weight"]), name_of(arguments["bias"])), window)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        x, axes = arguments["input"], len(self.window.kernel)
        settings = {name: arguments[name] for name in ("stride", "padding", "output_padding", "groups", "dilation")}
        convolve = partial(_CONVOLUTIONS[axes], **settings)
        output = tag(on_rows(convolve, merged(convolve, axes + 2), x, arguments["weight"], arguments["bias"]))
        return output, x.to(output.dtype)

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        axes = len(self.window.kernel)
        x, g = (each.reshape(len(each), -1, *each.shape[-axes - 1 :]) for each in (saved, output_gradient))
        weight = self.window.patches_of_images(g, x) if self.names[0] else None
        bias = DenseBlock(g.flatten(3).sum(dim=(1, 3), dtype=held_in(g.dtype))) if self.names[1] else None
        return weight, bias
