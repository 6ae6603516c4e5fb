"""Rules for per-example gradients of operations, and `register_gradient` for layers of one's own.

A rule computes the gradients of an operation's parameters from its input and the gradient of its output.

Index letters: `r` is a row (a physical example), `t` a place within it (a token, a pixel), `i` and `o` are input and
output features. A rule uses rows only by their leading axis, and so rows cannot affect each other.

Each row has a batch axis of its own. It has length one, unless the model folds frames, tokens or a pair of images into
the batch axis. It is the second axis, after the rows, and may have any length. Its order is up to the model, because
each row is folded by itself.

Guarantee of `register_gradient`: the registered function runs inside `vmap`, for one example at a time, so examples
cannot affect each other in it. Norms and sums are computed from its results. So a wrong formula trains badly, but what
each example adds is bounded all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sordino._input import validate
from sordino.errors import UsageError
from sordino.gradients.blocks import Block, DenseBlock
from sordino.gradients.views import Name

Tag = Callable[[Tensor], Tensor]


class Rule(Protocol):
    """An operation with parameters and settings. `names` are its trained parameters, or None for one that is not."""

    @property
    def names(self) -> tuple[Name | None, ...]: ...

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Any, Tensor]:
        """Runs the operation. Returns its output, and the part of its input that `blocks` will need.

        `tag` must be called once, on the tensor whose gradient `blocks` will get: the output, or a tensor inside if the
        operation computes more after its parameters. It returns equal values.
        """
        ...

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """One block per name. Both tensors have the rows first, then the axes of the operation.

        A batch axis among these may have any length: gradients are sums over it.
        """
        ...


class MultipliesAsItRan:
    """Base of rules that get input and output gradient in the precision of the operation, and multiply in it.

    Other rules get both in the precision of the model.
    """


Gradient = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]

_gradients: dict[type[nn.Module], Gradient] = {}


def register_gradient(module_type: type[nn.Module]) -> Callable[[Gradient], Gradient]:
    """Registers a function that computes the gradients of a layer from its input and the gradient of its output.

    The function gets the layer, and the input and the output gradient of one example (a batch of one). It returns a
    gradient for each trainable parameter by name. It is compared with autograd on synthetic inputs before training.

    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(torch.ones(4))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> @register_gradient(Scale)
    ... def gradient(layer, x, output_gradient):
    ...     return {"factor": (x * output_gradient).sum(dim=0)}
    """
    if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
        raise UsageError(f"register_gradient takes a subclass of nn.Module, got {validate.described(module_type)}.")

    def register(gradient: Gradient) -> Gradient:
        if not callable(gradient):
            raise UsageError(
                f"a gradient must be a function of (layer, input, output_gradient), got {validate.described(gradient)}."
            )
        _gradients[module_type] = gradient
        return gradient

    return register


def is_registered(module: nn.Module) -> bool:
    """Whether a gradient is registered for the class of this layer."""
    return type(module) in _gradients


@dataclass(frozen=True)
class RegisteredLayerUse:
    """One use of a registered layer."""

    names: tuple[Name | None, ...]
    parameters: tuple[str, ...]  # the names of the same parameters within the layer
    layer: nn.Module = field(repr=False)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        output = arguments["output"].clone()  # the layer may need its own output in the backward pass
        return tag(output), arguments["input"]

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        from sordino.gradients.one_pass import TensorTracker, one_pass  # it imports the rules

        with one_pass() as tensors, TensorTracker(tensors):  # a function of the user could keep tensors of rows
            gradients = torch.vmap(self._gradients_of_one)(saved, output_gradient)
        each = (DenseBlock(gradient.reshape(len(saved), -1)) for gradient in gradients)
        return tuple(block if name else None for name, block in zip(self.names, each, strict=True))

    def _gradients_of_one(self, x: Tensor, output_gradient: Tensor) -> tuple[Tensor, ...]:
        gradients = _gradients[type(self.layer)](self.layer, x, output_gradient)
        shapes = {name: tuple(parameter.shape) for name, parameter in self.layer.named_parameters()}
        for name in self.parameters:
            if name not in gradients or tuple(gradients[name].shape) != shapes[name]:
                got = tuple(gradients[name].shape) if name in gradients else "none"
                layer = type(self.layer).__name__
                raise UsageError(f"the gradient of {layer}.{name} must have shape {shapes[name]}, got {got}.")
        return tuple(gradients[name] for name in self.parameters)


@contextmanager
def registered_layers(
    model: nn.Module,
    name_of: Callable[[Any], Name | None],
    entered: Callable[[], None],
    left: Callable[[RegisteredLayerUse, dict[str, Any]], Any],
) -> Iterator[None]:
    """While active, calls `entered` before each registered layer of `model` runs, and `left` with its use after."""
    hooks = []
    for module in model.modules():
        if is_registered(module):
            hooks.append(module.register_forward_pre_hook(lambda module, args: entered()))
            hooks.append(
                module.register_forward_hook(lambda module, args, output: left(*_use(module, args, output, name_of)))
            )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _use(
    layer: nn.Module, args: tuple[Any, ...], output: Any, name_of: Callable[[Any], Name | None]
) -> tuple[RegisteredLayerUse, dict[str, Any]]:
    if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
        name = type(layer).__name__
        raise UsageError(f"a layer with a registered gradient must map one tensor to one tensor: {name} does not.")
    parameters = tuple(name for name, _ in layer.named_parameters())
    names = tuple(name_of(value) for _, value in layer.named_parameters())
    return RegisteredLayerUse(names, parameters, layer), {"input": args[0], "output": output}
