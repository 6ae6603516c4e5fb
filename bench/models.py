"""The models whose steps are timed: each with its input shape, and how a batch of it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Places(nn.Module):
    """Adds a trained vector to each place."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(0.02 * torch.randn(places, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.vectors


class Attention(nn.Module):
    """Several heads, each token looking at all, or at those before it."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, places, width = x.shape
        by_head = self.project(x).reshape(rows, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(by_head[0], by_head[1], by_head[2], is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(rows, places, width))


class Block(nn.Module):
    """Attention and a two-layer network, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.LayerNorm(width), Attention(width, heads, causal))
        self.think = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.think(x)


class Mean(nn.Module):
    """The mean over places."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


class Transposed(nn.Module):
    """The last two axes swapped."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Recurrent(nn.Module):
    """An LSTM over 28 rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(28, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Gated(nn.Module):
    """A two-layer ReLU network made convex: frozen gates choose for which inputs a linear map counts."""

    def __init__(self, inputs: int, gates: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("gates", torch.randn(gates, inputs))
        self.maps = nn.Linear(inputs, gates * outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        is_open = F.linear(x, self.gates) >= 0
        return torch.einsum("rg,rgo->ro", is_open.to(x.dtype), self.maps(x).reshape(len(x), len(self.gates), -1))


def mlp(width: int = 512) -> nn.Module:
    """One hidden layer on 784 inputs."""
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


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
    patches = [nn.Unfold(4, stride=4), Transposed(), nn.Linear(48, 128), Places(64, 128)]
    blocks = [Block(128, heads=4, causal=False) for _ in range(4)]
    return nn.Sequential(*patches, *blocks, nn.LayerNorm(128), Mean(), nn.Linear(128, 10))


def gpt() -> nn.Module:
    """Six blocks of width 256 on 128 tokens of a vocabulary of 1000, each predicting the next."""
    blocks = [Block(256, heads=8, causal=True) for _ in range(6)]
    out = [nn.LayerNorm(256), nn.Linear(256, 1000), Transposed()]
    return nn.Sequential(nn.Embedding(1000, 256), Places(128, 256), *blocks, *out)


@dataclass(frozen=True)
class Benchmark:
    """A model, and a batch of synthetic inputs for it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int | None = None

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        if self.tokens is None:
            return torch.randn(size, *self.shape, generator=generator), torch.randint(
                0, 10, (size,), generator=generator
            )
        sentences = torch.randint(0, self.tokens, (size, self.shape[0] + 1), generator=generator)
        return sentences[:, :-1].contiguous(), sentences[:, 1:].contiguous()


BENCHMARKS = {
    "mlp": Benchmark(mlp, (784,)),
    "gated": Benchmark(lambda: Gated(784, gates=128, outputs=10), (784,)),
    "dp-cnn-s": Benchmark(dp_cnn_small, (1, 28, 28)),
    "dp-cnn": Benchmark(dp_cnn, (3, 32, 32)),
    "vit": Benchmark(vit, (3, 32, 32)),
    "lstm": Benchmark(Recurrent, (28, 28)),
    "gpt": Benchmark(gpt, (128,), tokens=1000),
}
