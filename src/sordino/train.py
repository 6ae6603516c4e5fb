"""A model, a data set and a target: everything around a run, for people who want none of the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from sordino import validate
from sordino.accounting import Guarantee
from sordino.budget import Budget
from sordino.calibration import calibrate, check_delta_for, check_target
from sordino.clipping import Clip, ClipByNorm
from sordino.contribution import LossGradient
from sordino.encoding import Encoding, Unchanged
from sordino.errors import UsageError
from sordino.noise import Gaussian
from sordino.run import Plan, PrivateRun
from sordino.sampling import Poisson, Sampler, steps_for

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Fitted:
    """A trained model and what its training promises."""

    model: nn.Module
    guarantee: Guarantee
    plan: Plan


def fit(
    model: nn.Module,
    data: object,
    *,
    epsilon: float,
    delta: float,
    batch_size: int,
    epochs: float | None = None,
    steps: int | None = None,
    sampler: Sampler | None = None,
    loss: Callable[..., Tensor] = F.cross_entropy,
    clip: Clip | float = 1.0,
    encoding: Encoding | None = None,
    learning_rate: float = 0.5,
    optimizer: torch.optim.Optimizer | MakeOptimizer | None = None,
    physical_batch_size: int | Literal["auto"] = "auto",
    autocast: torch.dtype | None = None,
    seed: int | None = None,
    allow_weak: bool = False,
    allow_large_delta: bool = False,
    progress: bool = True,
) -> Fitted:
    """Trains `model` in place with noise calibrated so that (epsilon, delta) holds, and says what was promised.

    `batch_size` is the expected one and the public divisor. Without a `sampler` it is Poisson sampling at
    `batch_size` / examples for `steps` steps, or for `epochs` passes on average. `clip` is a norm or a clipping stage;
    `optimizer` one of torch's, or a function of the parameters that makes one (SGD with momentum 0.9 unless said).

    >>> model, data = nn.Linear(4, 3), (torch.zeros(100, 4), torch.zeros(100, dtype=torch.int64))
    >>> fitted = fit(model, data, epsilon=3.0, delta=1e-3, batch_size=50, epochs=2, seed=0, progress=False)
    >>> fitted.guarantee.epsilon <= 3.0
    True
    """
    check_target(epsilon, delta, allow_weak=allow_weak)
    validate.instance(nn.Module, model=model)
    validate.count(batch_size=batch_size)
    validate.positive(learning_rate=learning_rate)
    optimizer = _make_optimizer(model, optimizer, learning_rate)
    budget = data if isinstance(data, Budget) else Budget(data)
    if sampler is None:
        sampler = _poisson(batch_size, budget.records.num_units, epochs=epochs, steps=steps)
    elif epochs is not None or steps is not None:
        raise UsageError("epochs and steps are the sampler's when a sampler is given.")
    public_size = getattr(sampler, "expected_examples", None) or budget.records.num_units
    validate.count(at_most=public_size, batch_size=batch_size)
    check_delta_for(public_size, delta, allow_large_delta=allow_large_delta)
    clip = ClipByNorm(clip) if isinstance(clip, (int, float)) else clip
    plan = Plan(sampler, LossGradient(loss, autocast), clip, Gaussian(1.0), encoding or Unchanged())
    plan = calibrate(plan, epsilon=epsilon, delta=delta, budget=budget, allow_weak=allow_weak)
    run = PrivateRun(plan, model, budget, seed=seed, physical_batch_size=physical_batch_size)
    guarantee = run.guarantee(delta=delta)
    with _progress_bar(progress) as bar:
        for private in bar.track(run, total=len(run), description="training privately"):
            private.divide(batch_size).write_to(model)
            optimizer.step()
    return Fitted(model, guarantee, plan)


def _poisson(batch_size: int, num_units: int, *, epochs: float | None, steps: int | None) -> Poisson:
    if (epochs is None) == (steps is None):
        raise UsageError("say either epochs or steps, not both and not neither.")
    validate.count(at_most=num_units, batch_size=batch_size)
    if epochs is not None:
        steps = steps_for(epochs, num_units, batch_size)
    return Poisson(rate=batch_size / num_units, steps=steps or 0)


def _make_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer | MakeOptimizer | None, learning_rate: float
) -> torch.optim.Optimizer:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise UsageError("the model has no trainable parameter: nothing to train.")
    if optimizer is None:
        optimizer = torch.optim.SGD(trainable, lr=learning_rate, momentum=0.9)
    elif not isinstance(optimizer, torch.optim.Optimizer) and callable(optimizer):
        optimizer = optimizer(trainable)
    validate.instance(torch.optim.Optimizer, optimizer=optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS asks for several gradients within a step, and each would be a release: use another.")
    groups = optimizer.param_groups
    validate.positive(**{f"lr of parameter group {i}": float(group["lr"]) for i, group in enumerate(groups)})
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if not held >= {id(parameter) for parameter in trainable}:
        raise UsageError("the optimizer does not hold all trainable parameters of the model.")
    return optimizer


def _progress_bar(visible: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not visible)
