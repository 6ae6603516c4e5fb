"""Checks and replacements of layers that a script registers for `ModuleValidator`, by class of the layer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from torch import nn

from sordino._input import validate
from sordino.errors import UsageError

Layers = type[nn.Module] | Sequence[type[nn.Module]]
Registry = dict[type[nn.Module], Callable[..., Any]]
_Registered = TypeVar("_Registered", bound=Callable[..., Any])

_VALIDATORS: Registry = {}
_FIXERS: Registry = {}


def register_module_validator(layers: Layers) -> Callable[[_Registered], _Registered]:
    """Registers a function that returns the problems of a layer. It adds to the checks of the library.

    A layer is checked if its class is exactly one of `layers` and something in it is trained. `make_private` refuses a
    model with a problem.
    """
    return _registering(layers, _VALIDATORS)


def register_module_fixer(layers: Layers) -> Callable[[_Registered], _Registered]:
    """Registers a function that returns a replacement for a layer, for `ModuleValidator.fix`.

    >>> @register_module_fixer(nn.BatchNorm3d)
    ... def without_norm(layer: nn.BatchNorm3d) -> nn.Module:
    ...     return nn.Identity()
    >>> with_replacements(nn.Sequential(nn.BatchNorm3d(4)))
    Sequential(
      (0): Identity()
    )
    """
    return _registering(layers, _FIXERS)


def problems_of(model: nn.Module) -> Iterator[Exception]:
    """What registered functions find wrong with the trained layers of a model."""
    for layer in model.modules():
        check = _VALIDATORS.get(type(layer))
        if check is not None and any(parameter.requires_grad for parameter in layer.parameters()):
            yield from check(layer)


def with_replacements(model: nn.Module) -> nn.Module:
    """A copy of a model, with the replacements that registered functions return for its layers."""
    copied = copy.deepcopy(model)
    replaced = {id(layer): _FIXERS[type(layer)](layer) for layer in copied.modules() if type(layer) in _FIXERS}
    for layer in replaced.values():
        validate.instance(nn.Module, **{"the result of a registered fixer": layer})
    return copy.deepcopy(copied, memo={**replaced})  # a layer that is used twice stays one layer


def _registering(layers: Layers, registry: Registry) -> Callable[[_Registered], _Registered]:
    classes = list(layers) if isinstance(layers, Sequence) else [layers]
    if not all(isinstance(layer, type) and issubclass(layer, nn.Module) for layer in classes):
        raise UsageError(f"layers must be classes of torch.nn.Module, got {validate.described(layers)}.")

    def register(function: _Registered) -> _Registered:
        registry.update(dict.fromkeys(classes, function))
        return function

    return register
