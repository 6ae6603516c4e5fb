"""Model, optimizer and contribution as an Opacus script sees them.

The model as a script sees it: the same parameters, buffers and layers under the same names.

A script's own optimizer, told before each step which gradient to take.

A contribution that a script's own loop makes: the plan says so, and computes none by itself.
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
from sordino.opacus.passes import of_nobody
from sordino.opacus.session import Session
from sordino.opacus.traced import TracedTensor


class PrivateModule(nn.Module):
    """Runs the rows of an issued batch on the tape, each alone, and anything else as the model always did.

    It holds the model's own dictionaries, so that `state_dict`, `parameters`, `to` and `apply` are those of the model.
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
        """A copy is the plain model, as for an average of the weights: it is not trained."""
        return copy.deepcopy(self._module, memo)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["_module"], name)


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


@dataclass(frozen=True)
class ScriptedGradient:
    """The gradient of the loss that a script computes from each issued batch, row by row (see `Session`)."""

    def check(self, model: nn.Module, records: Records) -> None:
        """What can be seen without running the model. The rest is checked when the script first runs it."""
        check_model(model)

    def of(self, model: nn.Module, batch: Batch, seeds: Tensor) -> Dense:
        if batch.num_units:
            raise UsageError("the gradients of this run are computed by the script that drives it.")
        return of_nobody(model)

    def bytes_per_row(self, model: nn.Module, records: Records) -> int:
        """Nothing is computed here."""
        return 1
