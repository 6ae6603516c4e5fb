"""Convex models have what the curvature bound needs: features of bounded norm, outputs linear in the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sordino.convex import GatedReLU, Linear, PairedReLU
from sordino.convex.model import ConvexModel
from sordino.errors import UsageError

MODELS = [GatedReLU(6, seed=1), PairedReLU(6, seed=1), Linear()]
ROWS = torch.cat(
    [torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.zeros(1, 5), torch.eye(5) * 1e4]
)


def features(model: ConvexModel, rows: torch.Tensor) -> torch.Tensor:
    """phi(x), read from the gradient of one output with respect to the weights."""
    module = model.build(inputs=5, outputs=1)
    found = []
    for row in rows:
        (gradient,) = torch.autograd.grad(module(row[None]).sum(), [*module.parameters()])
        found.append(gradient.flatten())
    return torch.stack(found)


def with_random_maps(model: ConvexModel) -> nn.Module:
    module = model.build(inputs=5, outputs=3)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_no_row_has_features_longer_than_the_bound(model):
    assert features(model, ROWS).double().norm(dim=1).max() <= model.feature_bound * (1 + 1e-6)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_outputs_are_features_times_maps(model):
    module = with_random_maps(model)
    maps = torch.cat(
        [parameter.detach().reshape(-1, 3, 5).transpose(0, 1).flatten(1) for parameter in module.parameters()]
    )
    assert torch.allclose(module(ROWS), features(model, ROWS) @ maps.T, atol=1e-4)


def test_of_each_pair_exactly_one_gate_is_open_even_on_the_boundary():
    rows = ROWS[:40] / ROWS[:40].norm(dim=1, keepdim=True)
    found = features(PairedReLU(6, seed=1), torch.cat([rows, -rows])).double()
    assert torch.allclose(found.norm(dim=1), torch.ones(80, dtype=torch.float64), atol=1e-6)


def test_most_rows_open_about_half_of_unpaired_gates():
    rows = ROWS[:40] / ROWS[:40].norm(dim=1, keepdim=True)
    squares = features(GatedReLU(64, seed=1), rows).double().square().sum(dim=1)
    assert 0.3 < squares.min() and squares.max() < 0.7


def test_a_gate_without_an_opposite_is_refused():
    with pytest.raises(UsageError, match="gates must be even, because gates come in opposite pairs, got 7"):
        PairedReLU(7)
