"""The private model, optimizer hook and gradient of a script that drives its own loop.

`PrivateModule` has the parameters, buffers and layers of the model under the same names. `step_privately` registers a
hook that gives the script's optimizer the released gradient before each step. `ScriptedGradient` is the contribution of
the plan; its gradients are computed by the script's loop and not by the plan.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.model_checks import check_model
from sordino.kernel.records import Batch, Records
from sordino.kernel.states import Dense
from sordino.opacus.passes import no_contributions
from sordino.opacus.session import Session
from sordino.opacus.traced import TracedTensor


class PrivateModule(nn.Module):
    """Runs each row of an issued batch on its own, and other inputs as the original model does.

    It shares the model's dictionaries, so that `state_dict`, `parameters`, `to` and `apply` are those of the model.
    """

    _module: nn.Module
    _session: Session

    def __init__(self, module: nn.Module, session: Session) -> None:
        super().__init__()
        shared = {name: vars(module)[name] for name in ("_parameters", "_buffers", "_modules")}
        vars(self).update(shared, _module=module, _session=session, training=module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        issued = any(isinstance(x, TracedTensor) for x in tree_leaves((args, kwargs)))
        if torch.is_grad_enabled() and (issued or self.training):
            return self._session.forward(*args, *kwargs.values())
        if issued:
            return self._session.look(*args, **kwargs)
        return self._module(*args, **kwargs)

    def train(self, mode: bool = True) -> PrivateModule:
        self._module.train(mode)
        self.training = mode
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Returns a copy of the original model, for example for averaging weights. It is not trained privately."""
        return copy.deepcopy(self._module, memo)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["_module"], name)


def step_privately(optimizer: torch.optim.Optimizer, model: nn.Module, session: Session, divisor: float) -> None:
    """Makes `optimizer.step()` use the released gradient, independent of the contents of `.grad`.

    The optimizer object stays the same, so schedulers, `state_dict` and `zero_grad` work as before. While parts of a
    batch are missing, `.grad` is None, and torch's optimizers do not change parameters without a gradient.
    """
    validate.instance(torch.optim.Optimizer, optimizer=optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS is not supported: it needs several gradients per step, and each would be a release.")
    _check_parameters(optimizer, model)

    def before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(x is not None for x in (*args[1:], *kwargs.values())):  # the first is the optimizer itself
            raise UsageError("step() takes no closure: it would compute another gradient of the same batch.")
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
        raise UsageError("the optimizer must have all trainable parameters of the module, but some are missing.")
    if held - {id(parameter) for parameter in model.parameters()}:
        raise UsageError("the optimizer must have the module's parameters only: other gradients would not be private.")


@dataclass(frozen=True)
class ScriptedGradient:
    """The gradient of the loss that a script computes from each issued batch, row by row (see `Session`)."""

    def check(self, model: nn.Module, records: Records) -> None:
        """Checks the model without running it. Further checks follow when the script first runs it."""
        check_model(model)

    def of(self, model: nn.Module, batch: Batch, seeds: Tensor) -> Dense:
        if batch.num_units:
            raise UsageError("the gradients of this run are computed by the script's loop, not by the plan.")
        return no_contributions(model)

    def bytes_per_row(self, model: nn.Module, records: Records) -> int:
        """Returns the minimum, because no gradients are computed here."""
        return 1
