"""Pictures above, what was made of their gradients below, with the error under each."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from torch import Tensor

from sordino.attacks.reconstruction.reconstructed import Reconstructed

_GAP = 2  # pixels between pictures
_NAMES = 2  # widths of a picture, for what stands beside a line


def draw_gallery(axes: Axes, columns: Sequence[Sequence[Reconstructed]], names: Sequence[str] = ()) -> None:
    """A line of originals, and below it a line for each way in which the same pictures were attacked.

    `columns` are these ways, all of the same pictures; `names` stand to the left of each line.
    """
    first = columns[0]
    size = first[0].picture.shape[-1]
    step = size + _GAP
    tall = step + size // 3  # room for an error
    for place, one in enumerate(first):
        _show(axes, one.picture, place * step, 0)
    for line, found in enumerate(columns, start=1):
        for place, one in enumerate(found):
            top = step + (line - 1) * tall
            _show(axes, one.found, place * step, top)
            axes.text(
                place * step + size / 2, top + size + 1, f"{one.likeness.mse:.2g}", ha="center", va="top", fontsize=6
            )
        if names:
            axes.text(-_GAP, step + (line - 1) * tall + size / 2, names[line - 1], ha="right", va="center", fontsize=6)
    axes.set(xlim=(-_NAMES * size if names else 0, len(first) * step), ylim=(step + len(columns) * tall, 0))
    axes.set_axis_off()


def _show(axes: Axes, pixels: Tensor, left: float, top: float) -> None:
    height, width = pixels.shape[1:]
    extent = (left, left + width, top + height, top)
    shown = pixels.movedim(0, -1).squeeze(-1).numpy()
    axes.imshow(shown, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="none")
