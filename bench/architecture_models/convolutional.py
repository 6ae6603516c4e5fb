"""Convolutional networks for images, and the layers that they are known for."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sordino as so
from bench.architecture_models.dense import mlp
from bench.architecture_models.kinds import CLASSES, Case, Net, kind, vectors

SIDE = 12


def pictures(model: nn.Module, rows: int, channels: int = 3, side: int = SIDE) -> Case:
    return vectors(model, rows, channels, side, side)


def pooled(*layers: nn.Module, channels: int) -> nn.Sequential:
    """Layers below a global average and a linear layer."""
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias, group normalization and an activation."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.GroupNorm(2, outputs), nn.ReLU())


class Residual(nn.Module):
    """A layer added to its input, or to a projection of it."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut

    def forward(self, x: Tensor) -> Any:
        return (x if self.shortcut is None else self.shortcut(x)) + self.inner(x)


@kind()
def lenet(rows: int) -> Case:
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 3), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), mlp(16 * 36, 32, CLASSES, activation=nn.Tanh),
    )  # fmt: skip
    return pictures(model, rows, 1, 28 // 2 * 2)


@kind()
def resnet(rows: int) -> Case:
    blocks = [Residual(nn.Sequential(conv(8, 8), conv(8, 8))) for _ in range(2)]
    down = Residual(nn.Sequential(conv(8, 16, stride=2), conv(16, 16)), nn.Conv2d(8, 16, 1, 2))
    return pictures(pooled(conv(3, 8), *blocks, down, channels=16), rows)


@kind()
def resnet_with_replaced_batch_norm(rows: int) -> Case:
    inner = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    model = pooled(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Residual(inner), channels=8)
    return pictures(so.replace_batchnorm(model), rows)


@kind()
def densenet(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        for layer in m.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return m.head(m.transition(x))

    layers = nn.ModuleList(
        nn.Sequential(nn.GroupNorm(1, c), nn.ReLU(), nn.Conv2d(c, 4, 3, padding=1, bias=False)) for c in (4, 8, 12)
    )
    transition = nn.Sequential(nn.Conv2d(16, 8, 1), nn.AvgPool2d(2))
    model = Net(run, layers=layers, transition=transition, head=pooled(channels=8))
    return pictures(nn.Sequential(nn.Conv2d(3, 4, 3), model), rows)


@kind()
def mobilenet(rows: int) -> Case:
    def inverted(channels: int, expanded: int) -> nn.Module:
        middle = nn.Conv2d(expanded, expanded, 3, padding=1, groups=expanded)
        layers = nn.Conv2d(channels, expanded, 1), nn.Hardswish(), middle, nn.ReLU6(), nn.Conv2d(expanded, channels, 1)
        return Residual(nn.Sequential(*layers))

    return pictures(pooled(conv(3, 8, stride=2), inverted(8, 16), inverted(8, 16), channels=8), rows)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Any:
        return x * torch.sigmoid(self.expand(F.silu(self.reduce(x.mean(dim=(2, 3), keepdim=True)))))


@kind()
def efficientnet(rows: int) -> Case:
    def block() -> nn.Module:
        layers = conv(8, 16, 1), conv(16, 16, 3, groups=16), SqueezeExcite(16, 4), nn.Conv2d(16, 8, 1)
        return Residual(nn.Sequential(*layers))

    return pictures(pooled(conv(3, 8, stride=2), block(), block(), channels=8), rows)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.inner = nn.LayerNorm(channels), mlp(channels, 4 * channels, channels, activation=nn.GELU)
        self.gamma = nn.Parameter(0.5 * torch.ones(channels))

    def forward(self, x: Tensor) -> Any:
        hidden = self.norm(self.spatial(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.inner(hidden)).permute(0, 3, 1, 2)


@kind()
def convnext(rows: int) -> Case:
    return pictures(pooled(nn.Conv2d(3, 8, 2, 2), ConvNeXtBlock(8), ConvNeXtBlock(8), channels=8), rows)


def with_norm(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(layer, nn.GELU(), nn.GroupNorm(1, 8))


@kind()
def convmixer(rows: int) -> Case:
    blocks = [
        nn.Sequential(Residual(with_norm(nn.Conv2d(8, 8, 5, groups=8, padding="same"))), with_norm(nn.Conv2d(8, 8, 1)))
        for _ in range(2)
    ]
    return pictures(pooled(nn.Conv2d(3, 8, 2, 2), *blocks, channels=8), rows)


@kind()
def shufflenet(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        kept, changed = m.stem(x).chunk(2, dim=1)
        both = torch.cat([kept, m.branch(changed)], dim=1)
        return m.head(F.channel_shuffle(both, 2))

    branch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=4))
    return pictures(Net(run, stem=nn.Conv2d(3, 8, 3), branch=branch, head=pooled(nn.ReLU(), channels=8)), rows)


@kind()
def inception(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return m.head(torch.cat([branch(x) for branch in m.branches], dim=1))

    pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(3, 4, 1))
    branches = nn.ModuleList([nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(3, 4, 5, padding=2), pool])
    return pictures(Net(run, branches=branches, head=pooled(nn.ReLU(), channels=16)), rows)


@kind()
def repvgg(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        kernel = m.large.weight + F.pad(m.small.weight, (1, 1, 1, 1))
        return m.head(F.relu(F.conv2d(m.stem(x), kernel, m.large.bias + m.small.bias, padding=1)))

    parts = {"large": nn.Conv2d(8, 8, 3), "small": nn.Conv2d(8, 8, 1)}
    return pictures(Net(run, stem=conv(3, 8), **parts, head=pooled(channels=8)), rows)


class StandardizedConv(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        deviation, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (deviation + 1e-4)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@kind()
def weight_standardized(rows: int) -> Case:
    layers = StandardizedConv(3, 8, 3), nn.GroupNorm(4, 8), nn.ReLU(), StandardizedConv(8, 8, 3, stride=2), nn.ReLU()
    return pictures(pooled(*layers, channels=8), rows)
