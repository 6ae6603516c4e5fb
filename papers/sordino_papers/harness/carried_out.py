"""A plan carried out on the rows of a table: the model that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn

from sordino.kernel.budget import Budget
from sordino.kernel.randomness import Key
from sordino.kernel.run import PrivateRun
from sordino.kernel.step import Plan
from sordino.training.averaging import Averaging
from sordino.training.loop import Training, measured
from sordino.training.schedules import Constant
from sordino_papers.harness.rows import Rows

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def carried_out(
    plan: Plan,
    model: nn.Module,
    rows: Rows,
    *,
    optimizer: MakeOptimizer,
    divisor: float,
    seed: int,
    averaging: Averaging | None = None,
) -> float:
    """Trains `model` in place as the plan says, and measures its accuracy on the public rows of the table."""
    run = PrivateRun(plan, model, Budget(rows.data), key=Key.from_seed(seed))
    training = Training(
        model, optimizer(model.parameters()), run, divisor=divisor, schedule=Constant(), averaging=averaging
    )
    while run.steps < len(run):
        training.step()
    model.load_state_dict(training.weights())
    return measured(model, rows.test)["accuracy"]
