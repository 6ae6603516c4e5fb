"""A script's own optimizer, told before each step which gradient to take."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.opacus.session import Session


def step_privately(optimizer: torch.optim.Optimizer, model: nn.Module, session: Session, divisor: float) -> None:
    """From now on `optimizer.step()` takes the released gradient, whatever `.grad` holds.

    The object stays what it is: schedulers, `state_dict` and `zero_grad` see no difference. While parts of a batch are
    to come there is no gradient, and torch's optimizers leave parameters without one alone.
    """
    validate.instance(torch.optim.Optimizer, optimizer=optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS asks for several gradients within a step, and each would be a release: use another.")
    _check_parameters(optimizer, model)

    def before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(x is not None for x in (*args[1:], *kwargs.values())):  # the first is the optimizer itself
            raise UsageError("step() takes no closure: it would ask for another gradient of the same batch.")
        _check_parameters(optimizer, model)
        private = session.release()
        for parameter in model.parameters():
            parameter.grad = None
        if private is not None:
            private.divide(divisor).write_to(model)

    optimizer.register_step_pre_hook(before_step)


def _check_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not trained <= held:
        raise UsageError("the optimizer does not hold all trainable parameters of the module.")
    if held - {id(parameter) for parameter in model.parameters()}:
        raise UsageError("the optimizer holds parameters of something else, whose gradients would not be private.")
