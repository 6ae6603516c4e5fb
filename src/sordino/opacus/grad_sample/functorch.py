"""A model as a function of its parameters, which scripts of Opacus import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def make_functional(model: nn.Module) -> tuple[Callable[..., Any], tuple[nn.Parameter, ...]]:
    """A function of (parameters, *inputs), and the parameters of the model.

    >>> import torch
    >>> function, parameters = make_functional(nn.Linear(2, 1))
    >>> function(parameters, torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """
    names = [name for name, _ in model.named_parameters()]

    def function(parameters: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        return functional_call(model, dict(zip(names, parameters, strict=True)), args, kwargs)

    return function, tuple(model.parameters())
