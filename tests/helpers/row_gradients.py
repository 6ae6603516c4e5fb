"""Per-example gradients as a matrix, and the loop over single examples as their oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import Batch, as_records
from sordino.kernel.states import PerExample


def loop(model: nn.Module, loss: Callable[[Any, Tensor], Tensor], inputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """Computes the gradients one example at a time, with plain autograd."""
    rows = []
    for b in range(len(target)):
        model.zero_grad()
        loss(model(*(x[b : b + 1] for x in inputs)), target[b : b + 1]).backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        rows.append(torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in trained]))
    model.zero_grad()
    return torch.stack(rows)


def gathered(*parts: Tensor) -> Batch:
    return as_records(parts).gather(torch.arange(len(parts[-1])))


def rows_of(each: PerExample) -> Tensor:
    """The gradients as a dense matrix."""
    return torch.cat([*each.rows(3), torch.zeros(0, each.layout.size)])


def matrix(
    model: nn.Module, loss: Callable[[Any, Tensor], Tensor], batch: Batch, seeds: Tensor | None = None
) -> Tensor:
    seeds = torch.arange(len(batch.units)) if seeds is None else seeds
    return rows_of(LossGradient(loss).of(model, batch, seeds))
