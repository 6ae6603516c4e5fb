"""The models whose steps are timed: each with its input shape, and how a batch of it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


class TokenModel(nn.Module):
    """Embedding, places, blocks of attention, and a linear layer on the mean: a small GPT or ViT."""

    def __init__(self, embed: nn.Module, places: int, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.embed, self.place = embed, nn.Parameter(0.02 * torch.randn(places, width))
        layer = lambda: nn.TransformerEncoderLayer(  # noqa: E731
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.Sequential(*(layer() for _ in range(blocks)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.embed(x) + self.place)).mean(dim=1))


class Recurrent(nn.Module):
    """An LSTM over 28 rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def dp_cnn() -> nn.Module:
    """DP-CNN, 550,570 parameters."""
    widths = [3, 32, 32, 64, 64, 128, 128]
    layers: list[nn.Module] = []
    for depth, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Tanh()]
        layers += [nn.MaxPool2d(2)] if depth % 2 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))


def dp_cnn_small() -> nn.Module:
    """DP-CNN/S, 26,010 parameters."""
    first = [nn.Conv2d(1, 16, 8, 2, 2), nn.Tanh(), nn.MaxPool2d(2, 1)]
    second = [nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))


def vit() -> nn.Module:
    """Four blocks of width 128 on 64 patches of 4 by 4 pixels."""
    patches = nn.Sequential(nn.Unfold(4, stride=4), _Transposed(), nn.Linear(48, 128))
    return TokenModel(patches, places=64, width=128, blocks=4, heads=4)


class _Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def gpt() -> nn.Module:
    """Six blocks of width 256 on 128 tokens."""
    return TokenModel(nn.Embedding(1000, 256), places=128, width=256, blocks=6, heads=8)


@dataclass(frozen=True)
class Benchmark:
    """A model, and a batch of synthetic inputs for it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int | None = None

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, 10, (size,), generator=generator)
        if self.tokens is not None:
            return torch.randint(0, self.tokens, (size, *self.shape), generator=generator), labels
        return torch.randn(size, *self.shape, generator=generator), labels


BENCHMARKS = {
    "mlp": Benchmark(lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10)), (784,)),
    "dp-cnn-s": Benchmark(dp_cnn_small, (1, 28, 28)),
    "dp-cnn": Benchmark(dp_cnn, (3, 32, 32)),
    "vit": Benchmark(vit, (3, 32, 32)),
    "lstm": Benchmark(Recurrent, (28, 28)),
    "gpt": Benchmark(gpt, (128,), tokens=1000),
}
