"""A small run whose gradients are on view."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.kernel.encoding import Encoding, Unchanged
from sordino_papers.sparsification.diagnostics import ExposedRun

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, LABELS = torch.randn(60, 5, generator=GENERATOR), torch.randint(0, 3, (60,), generator=GENERATOR)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def make_plan(encoding: Encoding | None = None, *, steps: int = 6, rate: float = 0.5, noise: float = 1.0) -> so.Plan:
    gradient, clip = so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5)
    return so.Plan(so.Poisson(rate, steps), gradient, clip, so.Gaussian(noise), encoding or Unchanged())


def make_exposed(plan: so.Plan, *, at=(0,), data: object = (INPUTS, LABELS), model: nn.Module | None = None):
    model = model or make_model()
    return ExposedRun(plan, model, data, torch.optim.SGD(model.parameters(), lr=0.3), divisor=30, at=at)


def rows_one_by_one(model: nn.Module) -> torch.Tensor:
    """The gradient of every row, by a loop over plain backward passes."""
    rows = []
    for x, y in zip(INPUTS, LABELS, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)
