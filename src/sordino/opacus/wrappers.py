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
from torch.utils._pytree import tree_leaves, tree_map

from sordino._input import validate
from sordino.errors import UsageError
from sordino.kernel.clipping import ClipByNorm, ClipPerLayer
from sordino.kernel.model_checks import check_model
from sordino.kernel.noise import Gaussian
from sordino.kernel.records import Batch, Records
from sordino.kernel.run import PrivateRun
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

    def __init__(self, module: nn.Module, session: Session, calls: PrivateCalls) -> None:
        super().__init__()
        shared = {name: vars(module)[name] for name in ("_parameters", "_buffers", "_modules")}
        vars(self).update(shared, _module=module, _session=session, _calls=calls, training=module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        issued = any(isinstance(x, TracedTensor) for x in tree_leaves((args, kwargs)))
        if torch.is_grad_enabled() and (issued or self.training):
            return self._session.forward(*args, **kwargs)
        if issued:
            return self._session.look(*args, **kwargs)
        return self._module(*args, **kwargs)

    def train(self, mode: bool = True) -> PrivateModule:
        self._module.train(mode)
        self.training = mode
        return self

    def remove_hooks(self) -> None:
        """Makes the original model take no batches of the private loader any more."""
        vars(self)["_calls"].cleanup()

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Returns a copy of the original model, for example for averaging weights. It is not trained privately."""
        return copy.deepcopy(self._module, memo)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(vars(self)["_module"], name)


class PrivateCalls:
    """Makes calls of the original model with rows of a batch those of the session, by two hooks of torch.

    A hook cannot skip `forward`, so before it the rows are exchanged for a synthetic row, and after it the outputs for
    those of the session. Other calls are not changed. Copies of the model take no part.
    """

    def __init__(self, model: nn.Module, session: Session) -> None:
        self._session = session
        self._outputs: list[Any] = []
        before = model.register_forward_pre_hook(_Hook(self._before), with_kwargs=True, prepend=True)
        after = model.register_forward_hook(_Hook(self._after), always_call=False)
        self._handles = [before, after]

    def cleanup(self) -> None:
        """Removes the hooks. The model is then as it was, and takes no batches of the private loader any more."""
        for handle in self._handles:
            handle.remove()

    remove_hooks = cleanup

    def _before(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._outputs.clear()  # those of a call that failed
        if not any(self._session.made(x) for x in tree_leaves((args, kwargs))):
            return None
        if not torch.is_grad_enabled():
            self._outputs.append(self._session.look(*args, **kwargs))
            return tree_map(_one_row_of_zeros, (args, kwargs))
        self._outputs.append(self._session.forward(*args, **kwargs))
        return tree_map(self._session.synthetic_like, (args, kwargs))

    def _after(self, model: nn.Module, args: tuple[Any, ...], outputs: Any) -> Any:
        return self._outputs.pop() if self._outputs else None


class _Hook:
    """A hook that copies of the model do not keep."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __deepcopy__(self, memo: object) -> Any:
        return _no_hook

    def __reduce__(self) -> Any:
        return _copied_hook, ()


def _copied_hook() -> Any:
    return _no_hook


def _no_hook(*args: Any) -> None:
    """What a copy of the model has in place of a hook."""


def _one_row_of_zeros(value: Any) -> Any:
    if not isinstance(value, TracedTensor):
        return value
    return value.value.new_zeros((1, *value.value.shape[1:]))


def step_privately(optimizer: torch.optim.Optimizer, model: nn.Module, session: Session, divisor: float) -> None:
    """Makes `optimizer.step()` use the released gradient, independent of the contents of `.grad`.

    The optimizer object stays the same, so schedulers, `state_dict` and `zero_grad` work as before. While parts of a
    batch are missing, `.grad` is None, and torch's optimizers do not change parameters without a gradient. A closure is
    called once, before the release. The attributes that scripts print are set, and must stay as they are.
    """
    validate.instance(torch.optim.Optimizer, optimizer=optimizer)
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError("LBFGS is not supported: it needs several gradients per step, and each would be a release.")
    _check_parameters(optimizer, model)
    facts = _facts(session.run)
    vars(optimizer).update(facts)

    def before_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _check_parameters(optimizer, model)
        changed = [name for name, value in facts.items() if getattr(optimizer, name, value) != value]
        if changed:
            raise UsageError(f"optimizer.{changed[0]} is part of the plan, and cannot be changed: make a new plan.")
        closure = [*args[1:], *kwargs.values()]  # the first argument is the optimizer itself
        losses = [_loss_of(given) for given in closure if given is not None]
        private = session.release()
        for parameter in model.parameters():
            parameter.grad = None
        if private is not None:
            private.divide(divisor).write_to(model)
        return ((args[0], lambda: losses[0]), {}) if losses else None

    optimizer.register_step_pre_hook(before_step)


def _facts(run: PrivateRun) -> dict[str, Any]:
    """The public numbers that scripts read from the optimizer of Opacus."""
    facts: dict[str, Any] = {"expected_batch_size": round(run.expected_batch_size)}
    if isinstance(run.plan.noise, Gaussian):
        facts["noise_multiplier"] = run.plan.noise.noise_multiplier
    if isinstance(run.plan.clip, ClipByNorm):
        facts["max_grad_norm"] = run.plan.clip.norm
    if isinstance(run.plan.clip, ClipPerLayer):
        facts["max_grad_norm"] = list(run.plan.clip.norms)
    return facts


def _loss_of(closure: Any) -> Any:
    """Calls a closure, which computes the loss of the batch and calls `backward()`."""
    with torch.enable_grad():
        return closure()


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
