"""Runs that are stopped and continued by another run, for comparison with uninterrupted runs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import sordino as so


def released_by(
    new_run: Callable[[], so.PrivateRun], model: nn.Module, *, divisor: float, stop: int | None = None
) -> torch.Tensor:
    """The releases of each step while SGD trains the model. With `stop`, a second run continues from that step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run, values = new_run(), []
    while run.steps < len(run):
        if run.steps == stop:
            state, step = dict(run.coding_state), run.steps
            run, stop = new_run(), None
            run.continue_at(step, state)
        private = next(run)
        values.append(private.value)
        private.divide(divisor).write_to(model)
        optimizer.step()
    return torch.stack(values)
