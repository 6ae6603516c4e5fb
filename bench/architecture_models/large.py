"""Kinds whose parameters are so large that a copy for each example is slow; all the others have small ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from bench.architecture_models.kinds import CLASSES, Case, Net, kind, tokens, vectors, weights


def below_head(run: Any, features: int, **parts: Any) -> nn.Module:
    """A classifier of `run(model, x)`."""
    return Net(lambda m, x: m.head(run(m, x)), head=nn.Linear(features, CLASSES), **parts)


@kind()
def large_bag(rows: int) -> Case:
    model = below_head(lambda m, x: m.bag(x), 32, bag=nn.EmbeddingBag(20_000, 32, mode="mean"))
    return tokens(model, rows, 20, 20_000)


@kind()
def large_tied_table(rows: int) -> Case:
    """Scores of all words by a product with the transposed table, and a slice of them."""

    def run(m: Any, x: Tensor) -> Any:
        return (m.table(x).mean(dim=1) @ m.table.weight.t())[:, :32]

    return tokens(below_head(run, 32, table=nn.Embedding(10_000, 32)), rows, 20, 10_000)


@kind()
def large_bilinear(rows: int) -> Case:
    model = below_head(lambda m, x: torch.tanh(m.form(x, x)), 64, form=nn.Bilinear(128, 128, 64))
    return vectors(model, rows, 128)


@kind()
def large_transposed_convolution(rows: int) -> Case:
    model = below_head(lambda m, x: F.relu(m.up(x)).mean(dim=(2, 3)), 64, up=nn.ConvTranspose2d(128, 64, 4, 2, 1))
    return vectors(model, rows, 128, 8, 8)


@kind()
def large_einsum(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return torch.einsum("bti,hid->bthd", x, m.weight).flatten(2).mean(dim=1)

    return vectors(below_head(run, 256, weight=weights(8, 256, 32, scale=0.06)), rows, 16, 256)


@kind()
def large_weight_norm(rows: int) -> Case:
    layer = parametrizations.weight_norm(nn.Linear(1024, 1024))
    return vectors(below_head(lambda m, x: torch.tanh(m.layer(x)), 1024, layer=layer), rows, 1024)


@kind()
def large_kan(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        basis = torch.exp(-((x.unsqueeze(-1) - m.grid) ** 2))
        return torch.einsum("big,oig->bo", basis, m.weight)

    model = below_head(run, 256, grid=torch.linspace(-2, 2, 8), weight=weights(256, 256, 8, scale=0.02))
    return vectors(model, rows, 256)


@kind()
def large_masked_convolution(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return F.relu(F.conv2d(m.first(x), m.weight * m.mask, padding=2)).mean(dim=(2, 3))

    mask = (torch.arange(25) < 12).float().view(5, 5)
    model = below_head(run, 64, first=nn.Conv2d(3, 64, 1), weight=weights(64, 64, 5, 5, scale=0.03), mask=mask)
    return vectors(model, rows, 3, 16, 16)


@kind()
def large_tied_autoencoder(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        return torch.tanh(F.linear(F.relu(m.encoder(x)), m.encoder.weight.t()))

    return vectors(below_head(run, 784, encoder=nn.Linear(784, 512)), rows, 784)


@kind()
def large_stacked_experts(rows: int) -> Case:
    def run(m: Any, x: Tensor) -> Any:
        outputs = torch.einsum("btd,edf->btef", x, m.experts)
        return (m.gate(x).softmax(dim=-1).unsqueeze(-1) * outputs).sum(dim=2).mean(dim=1)

    model = below_head(run, 256, gate=nn.Linear(256, 8), experts=weights(8, 256, 256, scale=0.06))
    return vectors(model, rows, 16, 256)


@kind()
def large_merged_lora(rows: int) -> Case:
    """The low-rank product is added to a frozen weight before it is used."""

    def run(m: Any, x: Tensor) -> Any:
        return torch.tanh(F.linear(x, m.frozen.weight + m.up @ m.down))

    frozen = nn.Linear(1024, 1024, bias=False).requires_grad_(False)
    model = below_head(run, 1024, frozen=frozen, down=weights(8, 1024, scale=0.03), up=weights(1024, 8))
    return vectors(model, rows, 1024)


@kind()
def large_branch_on_values(rows: int) -> Case:
    """Layers that run or not by a branch of Python."""

    def run(m: Any, x: Tensor) -> Any:
        return torch.stack([F.relu(m.wide(row)) if row[0] > 0 else F.relu(m.other(row)) for row in x])

    return vectors(below_head(run, 512, wide=nn.Linear(512, 512), other=nn.Linear(512, 512)), rows, 512)
