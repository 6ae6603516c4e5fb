"""Runs that are stopped on the way and go on in another, to be compared with runs that are not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import sordino as so


def released_by(
    new_run: Callable[[], so.PrivateRun], model: nn.Module, *, divisor: float, stop: int | None = None
) -> torch.Tensor:
    """What each step releases while SGD moves the model; with `stop`, in two runs, the second going on there."""
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
