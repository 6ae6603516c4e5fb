"""The model as a script sees it: the same parameters, buffers and layers under the same names."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from sordino.opacus.session import Session
from sordino.opacus.traced import Traced


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
        issued = any(isinstance(x, Traced) for x in tree_leaves((args, kwargs)))
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
