"""The rule for per-example gradients of convolutions in one, two and three dimensions.

The gradient of a weight is the sum over places of the output gradient times the patch of the input at that place.
Stride, padding, dilation and groups are supported. Index letters are those of `rules`. "Offset" is a position within
the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.blocks import (
    Block,
    DenseBlock,
    OfPlaces,
    gram_is_cheaper,
    held_in,
    write_products,
    zero_unless,
)
from sordino.gradients.norms import Lengths, gram, lengths_of_products, squared_norms
from sordino.gradients.rowwise import merged, on_rows
from sordino.gradients.rules import MultipliesAsItRan, Tag
from sordino.gradients.views import Name

_WORTH_TRANSPOSING = 4  # channels last is used if contiguous runs of a patch get longer by this factor


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution: offset k of place t is at stride * t + dilation * k of the padded input."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int

    def patches_of_images(self, x: Tensor, g: Tensor) -> Block:
        """The block of the weight. Axes: row, image of the row, channel, place. Most rows have one image."""
        images = x.shape[1]
        if images == 1:
            return self.patches(x[:, 0], g[:, 0])
        if len(self.kernel) < len(_CONVOLUTIONS):
            return self.with_still_axis().patches(x.movedim(1, -1), g.movedim(1, -1))
        starts = tuple(range(0, len(x) * images + 1, images))
        return self.patches(x.flatten(0, 1), g.flatten(0, 1)).of_units(starts)

    def patches(self, x: Tensor, g: Tensor) -> Block:
        """The gradients of the weight in the cheapest form, for inputs and output gradients with the rows first."""
        places, channels, shifts, dtype = prod(g.shape[2:]), x.shape[1], prod(self.kernel), held_in(g.dtype)
        pixels = prod(size + sum(sides) for size, sides in zip(x.shape[2:], self.padding, strict=True))
        size = g.shape[1] * channels // self.groups * shifts
        # A GPU may compute a convolution by Fourier transforms, to which the error bound of `rounding` does not apply.
        if (
            not g.is_cuda
            and self.groups == 1
            and gram_is_cheaper(
                places=places, size=size, features=g.shape[1], pixels=pixels, channels=channels, shifts=shifts
            )
        ):
            return GramPatches(self, x.to(dtype), g.to(dtype))
        return WindowBlock(self, x, g) if g.dtype == dtype else self._rounded(x, g)

    def _rounded(self, x: Tensor, g: Tensor) -> RoundedPatches:
        run = x.shape[1] * prod(self.kernel[1:][-1:])  # contiguous values of a patch with channels last
        kind = ChannelsLastPatches if self.groups == 1 and run >= _WORTH_TRANSPOSING * g.shape[-1] else RoundedPatches
        return kind(self, x, g)

    def with_still_axis(self) -> Window:
        """This convolution with one more axis, along which it does not slide, such as the images of a row."""
        once, nowhere = (1,), ((0, 0),)
        kernel, stride, dilation = (setting + once for setting in (self.kernel, self.stride, self.dilation))
        return Window(kernel, stride, self.padding + nowhere, dilation, self.groups)

    def padded(self, x: Tensor) -> Tensor:
        """The padded input, contiguous."""
        return _padded(x, self._sides)

    def padded_with_channels_last(self, x: Tensor) -> Tensor:
        """The padded input with the channels as last axis, contiguous."""
        return _padded(x.movedim(1, -1), (0, 0, *self._sides))

    @property
    def _sides(self) -> tuple[int, ...]:
        """The padding from the last axis to the first, as `F.pad` needs it."""
        return tuple(side for pair in reversed(self.padding) for side in pair)


@dataclass(frozen=True, repr=False)
class WindowBlock(Block):
    """Gradients formed when needed: row `r` is the sum over places t of `g[r, :, t]` times the patch of `x[r]` at t.

    Forming them takes as many multiplications as the weight gradient of plain training.
    """

    window: Window
    x: Tensor
    g: Tensor

    @property
    def size(self) -> int:
        return self.g.shape[1] * self.x.shape[1] // self.window.groups * prod(self.window.kernel)

    @property
    def is_formed_later(self) -> bool:
        return True

    def take(self, rows: slice) -> Self:
        return replace(self, x=self.x[rows], g=self.g[rows])

    def present(self, rows: Tensor) -> Self:
        return replace(self, x=zero_unless(rows, self.x), g=zero_unless(rows, self.g))

    def formed(self, room: Tensor | None = None) -> Block:
        return self._by_offset(room)

    def _by_offset(self, room: Tensor | None = None) -> ByOffset:
        """Forms the gradients by one matrix product for each row, group and offset along the first axis.

        The factors have shapes (outputs, places) and (places, channels and other offsets).
        """
        window, groups, (rows, outputs) = self.window, self.window.groups, self.g.shape[:2]
        g = self.g.reshape(rows * groups, outputs // groups, -1)
        room = self.g.new_empty(rows * self.size, dtype=held_in(self.g.dtype)) if room is None else room
        by_offset = room.view(window.kernel[0], rows * groups, outputs // groups, -1)
        for gradients, shifted in zip(by_offset, self._shifted(), strict=True):
            write_products(g, shifted.transpose(1, 2), gradients)
        return self._holder(window, by_offset)

    @property
    def _holder(self) -> type[ByOffset]:
        return ByOffset

    def laid_out(self, keep: Tensor) -> Tensor:
        shape = self.g.shape[1] // self.window.groups, self.x.shape[1] // self.window.groups
        return self._holder.mask(self.window, keep.to(held_in(self.g.dtype)), *shape)

    def _shifted(self) -> Iterator[Tensor]:
        """The patches at each offset along the first axis, shape (row and group, channels and other offsets, places).

        Patches are copied for all axes but the first. Along the first axis a shift is a slice of that copy. With a
        stride along the first axis, there is a copy for each of its phases.
        """
        window, x = self.window, self._padded_to_whole_phases()
        stride, dilation = window.stride[0], window.dilation[0]
        rows, channels, length, *_ = x.shape
        first, *others = self.g.shape[2:]
        step_row, step_channel, step_first, *steps = x.stride()
        other_steps = (
            *_times(window.dilation[1:], steps),
            step_first,
            stride * step_first,
            *_times(window.stride[1:], steps),
        )
        shape = rows, channels, *window.kernel[1:], stride, length // stride, *others
        patches = x.as_strided(shape, (step_row, step_channel, *other_steps))
        patches = patches.reshape(rows * window.groups, -1, stride, length // stride * prod(others))
        for offset in range(window.kernel[0]):
            start, phase = divmod(dilation * offset, stride)
            yield patches[:, :, phase].narrow(2, start * prod(others), first * prod(others))

    def _padded_to_whole_phases(self) -> Tensor:
        x, stride = self.window.padded(self.x), self.window.stride[0]
        spare = -x.shape[2] % stride
        return F.pad(x, [0, 0] * (x.ndim - 3) + [0, spare]) if spare else x

    def squared_norms(self) -> Tensor:
        return self.formed().squared_norms()

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        """Adds the weighted sum by the backward kernel of plain training."""
        window, g = self.window, weights.reshape(-1, *[1] * (self.g.ndim - 1)) * self.g
        x, like = window.padded(self.x), self.x.new_empty(g.shape[1], self.x.shape[1] // window.groups, *window.kernel)
        none = [0] * len(window.kernel)
        _, gradient, _ = torch.ops.aten.convolution_backward(
            g, x, like, None, window.stride, none, window.dilation, False, none, window.groups, [False, True, False]
        )
        total += gradient.flatten()

    def dense(self) -> Tensor:
        return self._by_offset().dense()


@dataclass(frozen=True, repr=False)
class GramPatches(OfPlaces, WindowBlock):
    """Gradients that are never formed: the Gram matrix of patches is a sum of shifted Gram matrices of pixels."""

    @property
    def is_formed_later(self) -> bool:
        return False

    def masked(self, keep: Tensor) -> Block:
        return self.to_be_formed().masked(keep)  # a mask needs each coordinate

    def formed(self, room: Tensor | None = None) -> Block:
        return self

    @property
    def places(self) -> int:
        return prod(self.g.shape[2:])

    def doubled(self, rows: slice) -> GramPatches:
        return GramPatches(self.window, self.x[rows].double(), self.g[rows].double())

    def to_be_formed(self) -> WindowBlock:
        return WindowBlock(self.window, self.x, self.g)

    def lengths(self) -> Lengths:
        x = self.window.padded(self.x)
        rows, _, *sizes = x.shape
        places = self.g.shape[2:]
        of_pixels = gram(x.flatten(2).transpose(1, 2)).reshape(rows, *sizes, *sizes)
        of_outputs = gram(self.g.flatten(2).transpose(1, 2))
        of_patches = torch.zeros(rows, *places, *places, dtype=torch.float64, device=x.device)
        for offset in product(*(range(size) for size in self.window.kernel)):
            starts = _times(offset, self.window.dilation)
            cuts = tuple(
                slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(starts, self.window.stride, places, strict=True)
            )
            of_patches += of_pixels[(slice(None), *cuts, *cuts)]
        features = self.x.shape[1] + prod(self.window.kernel) + self.g.shape[1]
        return lengths_of_products(of_patches.reshape(of_outputs.shape), of_outputs, features)


@dataclass(frozen=True, repr=False)
class RoundedPatches(WindowBlock):
    """Gradients of a convolution whose products are computed in half precision.

    Norms and sum are both computed from the rounded products, so that the clip bounds what is added. The sum of plain
    training would differ from the sum of these gradients by their rounding errors.
    """

    def _shifted(self) -> Iterator[Tensor]:
        """Copies the patches of each shift: a product in half precision would copy a slice anyway."""
        window, x = self.window, self.window.padded(self.x)
        step_row, step_channel, *steps = x.stride()
        shape = *x.shape[:2], *window.kernel[1:], *self.g.shape[2:]
        strides = step_row, step_channel, *_times(window.dilation[1:], steps[1:]), *_times(window.stride, steps)
        for offset in range(window.kernel[0]):
            shifted = x[:, :, window.dilation[0] * offset :].as_strided(shape, strides)
            yield shifted.reshape(len(x) * window.groups, -1, prod(self.g.shape[2:]))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        self.formed().add_to(total, weights)


@dataclass(frozen=True, repr=False)
class ChannelsLastPatches(RoundedPatches):
    """Gradients in half precision for many channels and short lines of pixels, with patches copied channels last.

    With channels last, a line of a window is contiguous in memory, in the input and in the patch. Otherwise, a copy
    would be made in runs as short as the lines.
    """

    def _shifted(self) -> Iterator[Tensor]:
        window, x = self.window, self.window.padded_with_channels_last(self.x)
        step_row, *steps, step_channel = x.stride()
        shape = len(x), *self.g.shape[2:], *window.kernel[1:], x.shape[-1]
        strides = step_row, *_times(window.stride, steps), *_times(window.dilation[1:], steps[1:]), step_channel
        for offset in range(window.kernel[0]):
            shifted = x[:, window.dilation[0] * offset :].as_strided(shape, strides)
            yield shifted.reshape(len(x), prod(self.g.shape[2:]), -1).transpose(1, 2)

    @property
    def _holder(self) -> type[ByOffset]:
        return ByOffsetChannelsLast


@dataclass(frozen=True, repr=False)
class ByOffset(Block):
    """Formed gradients, with axes: offset along the first axis, row and group, output, channel and other offsets."""

    window: Window
    gradients: Tensor

    @property
    def size(self) -> int:
        return self.gradients[0, 0].numel() * len(self.gradients) * self.window.groups

    @property
    def _channels(self) -> int:
        return self.gradients.shape[3] // prod(self.window.kernel[1:])

    def take(self, rows: slice) -> ByOffset:
        offsets, _, *shape = self.gradients.shape
        by_row = self.gradients.view(offsets, -1, self.window.groups, *shape)
        return replace(self, gradients=by_row[:, rows].flatten(1, 2))

    @classmethod
    def mask(cls, window: Window, factors: Tensor, outputs: int, channels: int) -> Tensor:
        """Converts the mask `factors`, in the order of the parameter, to the layout of the gradients of one row."""
        offsets = window.kernel[0]
        by_offset = factors.reshape(window.groups, outputs, channels, offsets, -1).movedim(3, 0)
        return cls._as_held(by_offset).reshape(offsets, 1, window.groups, outputs, -1)

    @staticmethod
    def _as_held(each: Tensor) -> Tensor:
        """Merges the last two axes, channel and other offsets, in the memory order of the gradients."""
        return each.flatten(-2)

    def _by_channel(self, held: Tensor) -> Tensor:
        """Inverts `_as_held`: splits the last axis into channel and other offsets."""
        return held.reshape(*held.shape[:-1], self._channels, -1)

    def present(self, rows: Tensor) -> ByOffset:
        each = rows.repeat_interleave(self.window.groups)
        return replace(self, gradients=torch.where(each[:, None, None], self.gradients, 0.0))

    def masked_(self, laid_out: Tensor) -> ByOffset:
        offsets, _, outputs, rest = self.gradients.shape
        self.gradients.view(offsets, -1, self.window.groups, outputs, rest).mul_(laid_out)
        return self

    def squared_norms(self) -> Tensor:
        offsets, rows = len(self.gradients), self.gradients.shape[1] // self.window.groups
        squares = squared_norms(self.gradients.reshape(offsets * rows, -1))
        return squares.reshape(offsets, rows).sum(dim=0)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        added = torch.zeros_like(total)
        self.add_as_held(added, weights)
        total += self.in_order(added)

    def add_as_held(self, total: Tensor, weights: Tensor) -> None:
        offsets = len(self.gradients)
        by_row = self.gradients.reshape(offsets, len(weights), -1)
        total.view(offsets, 1, -1).baddbmm_(weights.expand(offsets, 1, -1), by_row)

    def in_order(self, total: Tensor) -> Tensor:
        offsets, _, outputs, rest = self.gradients.shape
        held = self._by_channel(total.reshape(offsets, self.window.groups, outputs, rest))
        return held.permute(1, 2, 3, 0, 4).flatten()

    def dense(self) -> Tensor:
        offsets, _, outputs, rest = self.gradients.shape
        each = self._by_channel(self.gradients.reshape(offsets, -1, self.window.groups, outputs, rest))
        return each.permute(1, 2, 3, 4, 0, 5).flatten(1)


@dataclass(frozen=True, repr=False)
class ByOffsetChannelsLast(ByOffset):
    """Formed gradients as in `ByOffset`, with the channel after the other offsets."""

    @staticmethod
    def _as_held(each: Tensor) -> Tensor:
        return each.transpose(-1, -2).flatten(-2)

    def _by_channel(self, held: Tensor) -> Tensor:
        return held.reshape(*held.shape[:-1], -1, self._channels).transpose(-1, -2)


def _padded(x: Tensor, sides: tuple[int, ...]) -> Tensor:
    return (F.pad(x, sides) if any(sides) else x).contiguous()


def _times(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a * b for a, b in zip(one, other, strict=True))


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class Convolution(MultipliesAsItRan):
    """The rule of y[o, t] = sum over offsets k and channels c of W[o, c, k] x[c, stride * t + dilation * k]."""

    names: tuple[Name | None, Name | None]
    window: Window

    @classmethod
    def recognise(cls, arguments: dict[str, Any], name_of: Any) -> Convolution:
        kernel = tuple(arguments["weight"].shape[2:])
        dilation = per_axis(arguments["dilation"], len(kernel))
        stride, padding = per_axis(arguments["stride"], len(kernel)), _padding(arguments["padding"], kernel, dilation)
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
        weight = self.window.patches_of_images(x, g) if self.names[0] else None
        bias = DenseBlock(g.flatten(3).sum(dim=(1, 3), dtype=held_in(g.dtype))) if self.names[1] else None
        return weight, bias


def per_axis(setting: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """The setting of each axis, from one for all of them or from one for each."""
    return (setting,) * axes if isinstance(setting, int) else tuple(setting) * (axes // len(tuple(setting)))


def _padding(
    setting: int | str | tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    if setting == "valid":
        return ((0, 0),) * len(kernel)
    if setting == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)
    return tuple((side, side) for side in per_axis(setting, len(kernel)))  # type: ignore[arg-type]
