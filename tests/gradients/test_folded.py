"""Models that fold frames, tokens or pairs into the batch axis: gradients are those of a loop over single examples."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from contracts import relative_error
from row_gradients import loop, rows_of
from small_networks import reseeded as reseeded
from torch import Tensor, nn

import sordino as so
from sordino.gradients.taped import TapedGradients
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.records import as_records

ROWS, FRAMES, CLASSES = 5, 4, 3


class InOrder(nn.Module):
    """(B, T, ...) -> (B T, ...) and back: the frames of an example are adjacent."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(*layers), nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        each = self.layers(x.flatten(0, 1))
        return self.head(torch.tanh(each.reshape(*x.shape[:2], -1)).mean(dim=1))


class Interleaved(InOrder):
    """(B, T, ...) -> (T B, ...): the first frames of all examples, then the second ones."""

    def forward(self, x: Tensor) -> Tensor:
        each = self.layers(x.transpose(0, 1).flatten(0, 1))
        return self.head(torch.tanh(each.reshape(x.shape[1], x.shape[0], -1)).mean(dim=0))


class Siamese(InOrder):
    """Both images of an example through one network, as one batch after the other."""

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.layers(torch.cat([x[:, 0], x[:, 1]])).flatten(1).chunk(2)
        return self.head((one - other).abs() + one)


class Shuffled(InOrder):
    """Folds, and permutes the batch axis before the layers."""

    def forward(self, x: Tensor) -> Tensor:
        order = torch.arange(x.shape[1]).flip(0)
        return super().forward(x[:, order])


class Last(InOrder):
    """Features last, places folded: b t h w c -> (b t h w) c in the notation of einops."""

    def forward(self, x: Tensor) -> Tensor:
        each = self.layers(x.reshape(-1, x.shape[-1]))
        return self.head(torch.tanh(each.reshape(len(x), -1, each.shape[-1])).mean(dim=1))


class First(nn.Module):
    """A layer with several outputs, of which the first one is used."""

    def __init__(self, layer: nn.Module, **arguments: object) -> None:
        super().__init__()
        self.layer, self.arguments = layer, arguments

    def forward(self, x: Tensor) -> Tensor:
        given = (x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else (x,)
        return self.layer(*given, **self.arguments)[0]


class StepsInFront(First):
    """A layer whose batch axis is the second."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


class Quadratic(nn.Module):
    """A form of each frame, and a matrix for each feature of it."""

    def __init__(self) -> None:
        super().__init__()
        self.form, self.matrices = nn.Bilinear(6, 6, 5), nn.Parameter(torch.randn(5, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.stack([self.form(x, x.flip(-1)), self.form(x, x)], dim=-1)
        return torch.einsum("...hi,hio->...ho", pairs, self.matrices)


class Twice(nn.Module):
    """One layer on folded frames and on their mean."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.LazyLinear(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.tanh(self.layer(x.flatten(0, 1))).reshape(*x.shape[:2], -1).mean(dim=1)
        return self.head(torch.cat([each, torch.tanh(self.layer(x.mean(dim=1))).flatten(1)], dim=1))


def convolutions() -> tuple[nn.Module, ...]:
    return nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 6, 2, groups=2)


def pictures(frames: int = FRAMES) -> Tensor:
    return torch.randn(ROWS, frames, 2, 6, 5)


def words() -> Tensor:
    return torch.randn(ROWS, FRAMES, 6)


def lines() -> Tensor:
    return torch.randn(ROWS, FRAMES, 7, 6)


def without_shift(norm: nn.GroupNorm) -> nn.GroupNorm:
    norm.bias.requires_grad_(False)
    return norm


def with_batchnorm_replaced() -> nn.Module:
    return so.replace_batchnorm(InOrder(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)))


FOLDED: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "video": (lambda: InOrder(*convolutions()), pictures),
    "video, frames interleaved": (lambda: Interleaved(*convolutions()), pictures),
    "video, frames in another order": (lambda: Shuffled(*convolutions()), pictures),
    "siamese": (lambda: Siamese(*convolutions()), lambda: pictures(2)),
    "one frame": (lambda: InOrder(*convolutions()), lambda: pictures(1)),
    "convolution used twice": (lambda: Twice(nn.Conv2d(2, 3, 3, padding="same")), pictures),
    "wide convolution of few places": (
        lambda: InOrder(nn.Conv2d(24, 40, 2)),
        lambda: torch.randn(ROWS, 2, 24, 3, 3),
    ),
    "lines": (lambda: InOrder(nn.Conv1d(7, 4, 3, dilation=2), nn.InstanceNorm1d(4, affine=True)), lines),
    "volumes": (
        lambda: InOrder(nn.Conv3d(2, 3, 2, bias=False), nn.GroupNorm(3, 3)),
        lambda: torch.randn(ROWS, FRAMES, 2, 3, 4, 3),
    ),
    "pooled": (lambda: InOrder(nn.Conv2d(2, 4, 3, padding=1), nn.MaxPool2d(2), nn.GroupNorm(1, 4)), pictures),
    "instance norm of frames": (lambda: InOrder(nn.InstanceNorm2d(2, affine=True)), pictures),
    "group norm of frames": (lambda: InOrder(nn.GroupNorm(2, 2), nn.Tanh()), pictures),
    "group norm of tokens": (lambda: InOrder(nn.Linear(6, 8), nn.GroupNorm(4, 8)), words),
    "group norm of tokens, interleaved": (lambda: Interleaved(nn.Linear(6, 8), nn.GroupNorm(4, 8)), words),
    "group norm of places": (lambda: Last(nn.Linear(2, 8), nn.GroupNorm(2, 8)), lambda: torch.randn(ROWS, 3, 4, 2)),
    "group norm without a shift": (lambda: InOrder(without_shift(nn.GroupNorm(2, 6))), words),
    "replaced batch norm of tokens": (with_batchnorm_replaced, words),
    "layer norms of tokens": (lambda: InOrder(nn.LayerNorm(6), nn.Linear(6, 5), nn.RMSNorm(5)), words),
    "tables of tokens, sentences of a page": (
        lambda: InOrder(nn.Embedding(5, 4, padding_idx=1), nn.Tanh(), nn.Conv1d(7, 2, 3)),
        lambda: torch.randint(0, 5, (ROWS, FRAMES, 7)),
    ),
    "bags, sentences of a page": (
        lambda: InOrder(nn.EmbeddingBag(5, 4, padding_idx=1)),
        lambda: torch.randint(0, 5, (ROWS, FRAMES, 7)),
    ),
    "maxima of bags, interleaved": (
        lambda: Interleaved(nn.EmbeddingBag(5, 4, mode="max")),
        lambda: torch.randint(0, 5, (ROWS, FRAMES, 7)),
    ),
    "quadratic forms of tokens": (lambda: InOrder(Quadratic()), words),
    "quadratic forms of tokens, interleaved": (lambda: Interleaved(Quadratic()), words),
    "quadratic forms of lines": (lambda: InOrder(Quadratic()), lines),
    "transposed convolution of lines": (lambda: InOrder(nn.ConvTranspose1d(7, 4, 3, stride=2, dilation=2)), lines),
    "transposed convolution of volumes": (
        lambda: InOrder(nn.ConvTranspose3d(2, 3, 2, stride=2, groups=1)),
        lambda: torch.randn(ROWS, FRAMES, 2, 2, 3, 2),
    ),
    "transposed convolution": (lambda: InOrder(nn.ConvTranspose2d(2, 3, 2, stride=2), nn.GroupNorm(3, 3)), pictures),
    "recurrent, lines of a page": (lambda: InOrder(First(nn.GRU(6, 5, batch_first=True))), lines),
    "recurrent, steps in front": (lambda: Interleaved(StepsInFront(nn.LSTM(6, 5, bidirectional=True))), lines),
    "attention, places in front": (lambda: InOrder(StepsInFront(nn.MultiheadAttention(6, 2))), lines),
    "attention, lines of a page": (lambda: InOrder(First(nn.MultiheadAttention(6, 2, batch_first=True))), lines),
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    make_model, make_inputs = FOLDED[name]
    model, inputs = make_model(), make_inputs()
    with torch.no_grad():
        model(inputs)
        for parameter in model.parameters():  # scales of one and shifts of zero would hide mistakes
            parameter += 0.2 * torch.randn_like(parameter)
    return model, inputs, torch.arange(ROWS) % CLASSES


@pytest.mark.parametrize("name", FOLDED)
def test_the_clipped_sum_is_that_of_a_loop_over_single_examples(name: str) -> None:
    model, inputs, labels = made(name)
    records, units = as_records((inputs, labels)), torch.arange(ROWS)
    gradient = so.LossGradient(F.cross_entropy)
    gradient.check(model, records)
    each = gradient.of(model, records.gather(units), units)
    expected = loop(model, F.cross_entropy, (inputs,), labels).double()
    assert isinstance(each, TapedGradients)
    assert relative_error(rows_of(each).double(), expected) < 1e-5
    for norm in (0.3 * float(expected.norm(dim=1).median()), 1e6):
        clipped = (expected * (norm * SCALED_TO / expected.norm(dim=1, keepdim=True)).clamp(max=1)).sum(dim=0)
        assert relative_error(so.ClipByNorm(norm)(each).value.double(), clipped) < 1e-5


def test_frames_are_folded_in_half_precision_too() -> None:
    model, inputs, labels = made("video")
    batch, units = as_records((inputs, labels)).gather(torch.arange(ROWS)), torch.arange(ROWS)
    halved = so.LossGradient(F.cross_entropy, torch.bfloat16).of(model, batch, units)
    expected = loop(model, F.cross_entropy, (inputs,), labels)
    assert isinstance(halved, TapedGradients)
    assert relative_error(rows_of(halved), expected) < 0.05


def test_views_of_folded_examples_are_averaged_before_the_clip() -> None:
    model, inputs, labels = made("volumes")
    units = torch.arange(ROWS)
    thrice = so.by_user(
        (inputs.repeat(3, *[1] * (inputs.ndim - 1)), labels.repeat(3)), units.repeat(3), rows_per_user=3
    )
    each = so.LossGradient(F.cross_entropy).of(model, thrice.gather(units), torch.arange(3 * ROWS))
    expected = 3 * loop(model, F.cross_entropy, (inputs,), labels)
    assert isinstance(each, TapedGradients)
    assert relative_error(rows_of(each), expected) < 1e-5
