"""Augmentation: random views of each row, whose gradients are averaged before the clip.

De et al. (2022), "Unlocking high-accuracy differentially private image classification through scale". A unit adds one
vector to the sum, whatever the number of its views, so views cost time and no privacy.

Guarantee: a view is computed inside `vmap` by a function of one row, and its random draws are a hash of (seed of the
row, number of the view). So rows cannot affect each other here, and neither the size of micro-batches nor a resumed run
changes a view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.func import vmap

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients.one_pass import TensorTracker, one_pass
from sordino.gradients.probes import one_line
from sordino.gradients.row_loss import RowLoss
from sordino.gradients.row_randomness import RowRandomness
from sordino.kernel.records import Batch

_LARGEST_NUMBER = 64
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # its multiples up to the largest number are 2**54 apart; row seeds are closer


@runtime_checkable
class Transform(Protocol):
    """A random transform of one input. It draws by torch.rand, torch.randn and the like, independently for each row."""

    def apply(self, picture: Tensor) -> Tensor:
        """Transforms one input, without a batch axis: (channels, height, width) for an image."""
        ...


@dataclass(frozen=True)
class Flip:
    """Mirrors an image left to right with probability 1/2.

    >>> sorted({tuple(Flip().apply(torch.tensor([[[1, 2]]])).flatten().tolist()) for _ in range(64)})
    [(1, 2), (2, 1)]
    """

    def apply(self, picture: Tensor) -> Tensor:
        _check_image(self, picture)
        return torch.where(torch.rand((), device=picture.device) < 0.5, picture.flip(-1), picture)


@dataclass(frozen=True)
class Crop:
    """Shifts an image by up to `padding` pixels along each axis, and fills the border with its reflection.

    Equivalent to reflection padding followed by a random crop.

    >>> Crop(4).apply(torch.zeros(3, 32, 32)).shape
    torch.Size([3, 32, 32])
    """

    padding: int

    def __post_init__(self) -> None:
        validate.count(padding=self.padding)

    def apply(self, picture: Tensor) -> Tensor:
        _check_image(self, picture)
        height, width = picture.shape[-2:]
        if self.padding >= min(height, width):
            raise UsageError(
                f"padding must be less than height and width of the image, {height} x {width}, got {self.padding}."
            )
        shift = (torch.rand(2, device=picture.device) * (2 * self.padding + 1)).long() - self.padding
        rows = picture.index_select(-2, _reflected(height, shift[0]))
        return rows.index_select(-1, _reflected(width, shift[1]))


@dataclass(frozen=True)
class Jitter:
    """Adds normal noise of standard deviation `std` to each value, for tables and features. It adds no privacy.

    >>> Jitter(0.1).apply(torch.zeros(5)).shape
    torch.Size([5])
    """

    std: float

    def __post_init__(self) -> None:
        validate.positive(std=self.std)

    def apply(self, picture: Tensor) -> Tensor:
        return picture + self.std * torch.randn_like(picture)


@dataclass(frozen=True)
class Views:
    """The number of views of each row, and the transforms of its first input, applied in order.

    Every view is transformed; the row itself is a view only if the transforms happen to leave it unchanged.

    >>> from sordino.kernel.records import as_records
    >>> batch = as_records((torch.rand(9, 3, 8, 8), torch.zeros(9))).gather(torch.tensor([2, 5]))
    >>> seen, _ = Views(4, (Flip(), Crop(2))).of(batch, seeds=torch.tensor([7, 8]))
    >>> seen.inputs[0].shape, seen.units.tolist()
    (torch.Size([8, 3, 8, 8]), [0, 0, 0, 0, 1, 1, 1, 1])
    """

    number: int = 1
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        validate.count(at_most=_LARGEST_NUMBER, number=self.number)
        validate.instance(tuple, transforms=self.transforms)
        validate.instance(Transform, **{f"transform {i}": t for i, t in enumerate(self.transforms)})

    def of(self, batch: Batch, seeds: Tensor) -> tuple[Batch, Tensor]:
        """The views of each row as adjacent rows, and a seed for each. The first view has the seed of its row.

        A view that fails is marked invalid, as is a row on which the model fails: an error would reveal that the row
        was drawn.
        """
        if self == Views():
            return batch, seeds
        numbers = torch.arange(self.number, device=seeds.device)
        seeds = (seeds[:, None] + numbers * _GOLDEN).flatten()
        first, *others, target, valid, units = (
            x.repeat_interleave(self.number, dim=0) for x in (*batch.inputs, batch.target, batch.valid, batch.units)
        )
        changed, made = self._made_where_possible(first, seeds)
        return replace(batch, inputs=(changed, *others), target=target, valid=valid & made, units=units), seeds

    def check(self, batch: Batch, seeds: Tensor) -> None:
        """Refuses transforms that fail on synthetic rows or change their shape."""
        inputs = batch.inputs[0]
        try:
            changed = self._made(inputs, seeds)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"a transform cannot be applied to one input at a time: {one_line(error)}") from error
        if changed.shape != inputs.shape:
            shape, expected = tuple(changed.shape[1:]), tuple(inputs.shape[1:])
            raise UsageError(f"the transforms must keep the shape {expected} of an input, got {shape}.")

    def mean_of(self, loss: RowLoss) -> RowLoss:
        """The loss divided by the number of views, so that the sum over the views of a row is their mean."""
        return loss if self.number == 1 else replace(loss, summed=_DividedLoss(loss.summed, self.number))

    def _made(self, inputs: Tensor, seeds: Tensor) -> Tensor:
        if not self.transforms or not len(inputs):
            return inputs

        def view(row: Tensor) -> Tensor:
            with TensorTracker(made_in_this_pass):
                return self._transformed(row)

        # The complement of the seeds: the model draws from the seeds themselves.
        with torch.no_grad(), RowRandomness(~seeds), one_pass() as made_in_this_pass:
            views: Tensor = vmap(view, randomness="different")(inputs)
        return views.to(inputs.dtype)

    def _made_where_possible(self, inputs: Tensor, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Makes all views at once; if that fails, tries the halves in turn, down to single rows."""
        try:
            return self._made(inputs, seeds), torch.ones(len(seeds), dtype=torch.bool, device=seeds.device)
        except (RuntimeError, IndexError):
            if len(seeds) == 1:
                return inputs, torch.zeros(1, dtype=torch.bool, device=seeds.device)
        halves = zip(inputs.tensor_split(2), seeds.tensor_split(2), strict=True)
        made, possible = zip(*(self._made_where_possible(*half) for half in halves), strict=True)
        return torch.cat(made), torch.cat(possible)

    def _transformed(self, row: Tensor) -> Tensor:
        for transform in self.transforms:
            row = transform.apply(row)
        return row


@dataclass(frozen=True)
class _DividedLoss:
    summed: Callable[..., Any]
    number: int

    def __call__(self, outputs: Any, target: Tensor) -> Any:
        return self.summed(outputs, target) / self.number


def _check_image(transform: Transform, image: Tensor) -> None:
    if image.ndim != 3:
        name, shape = type(transform).__name__, tuple(image.shape)
        raise UsageError(f"{name} needs images of shape (channels, height, width), got inputs of shape {shape}.")


def _reflected(size: int, shift: Tensor) -> Tensor:
    """The indices 0..size-1 plus `shift`, reflected at both ends."""
    shifted = (torch.arange(size, device=shift.device) + shift).abs()
    return size - 1 - (size - 1 - shifted).abs()
