"""Rules for per-example gradients of recorded operations, and `register_gradient` for layers of one's own.

What a recorded operation must know: how its parameters' gradients follow from its input and its output's gradient.

Index letters: `r` a row (a physical example), `t` a place within it (a token, a pixel), `i` and `o` input and output
features. A rule sees rows only through their leading axis, so rows never meet.

The operation saw a batch within each row: of one, unless the model folds frames, tokens or a pair of pictures into the
batch axis. That axis comes second, after the rows, and may have any length; how the model orders it is its own affair,
because each row is folded alone.

Gradients of users' own layers, written down by their authors.

Guarantee: the function is run inside `vmap`, for one example at a time, so it cannot let examples meet. Norms and sums
are taken of what it returns, so a wrong formula trains badly and bounds what each example adds all the same.
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

Tag = Callable[[Tensor], Tensor]


class Rule(Protocol):
    """One parametrised operation with its settings. `names` are its trained parameters, None where there is none."""

    @property
    def names(self) -> tuple[str | None, ...]: ...

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Any, Tensor]:
        """The output of the operation, and what the gradients of its parameters will need of its input.

        `tag` is called once, on the tensor whose gradient `blocks` will be given: the output, or for an operation with
        something after its parameters a tensor inside. It answers the same values.
        """
        ...

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        """One block per name. Both tensors have the rows in front, then the axes that the operation saw.

        A batch axis among them need not have length one: what a parameter gets is the sum over it.
        """
        ...


class MultipliesAsItRan:
    """A rule that is given input and output gradient in the precision that the operation ran in, and multiplies in it.

    Other rules are given both in the model's own precision.
    """


Gradient = Callable[[Any, Tensor, Tensor], dict[str, Tensor]]

_gradients: dict[type[nn.Module], Gradient] = {}


def register_gradient(module_type: type[nn.Module]) -> Callable[[Gradient], Gradient]:
    """Says how the parameters' gradients of a layer follow from its input and from the gradient of its output.

    The function is given the layer, the input and the output's gradient of one example (a batch of one), and answers a
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
                f"a gradient is a function of (layer, input, output_gradient), got {validate.described(gradient)}."
            )
        _gradients[module_type] = gradient
        return gradient

    return register


def is_registered(module: nn.Module) -> bool:
    """Whether the gradient of such a layer was written down."""
    return type(module) in _gradients


@dataclass(frozen=True)
class RegisteredLayerUse:
    """One use of a registered layer."""

    names: tuple[str | None, ...]
    parameters: tuple[str, ...]  # the same by the layer's own names
    layer: nn.Module = field(repr=False)

    def run(self, arguments: dict[str, Any], tag: Tag) -> tuple[Tensor, Tensor]:
        return tag(arguments["output"].clone()), arguments[
            "input"
        ]  # the layer may need its output in the backward pass

    def blocks(self, saved: Tensor, output_gradient: Tensor) -> tuple[Block | None, ...]:
        gradients = torch.vmap(self._gradients_of_one)(saved, output_gradient)
        each = (DenseBlock(gradient.reshape(len(saved), -1)) for gradient in gradients)
        return tuple(block if name else None for name, block in zip(self.names, each, strict=True))

    def _gradients_of_one(self, x: Tensor, output_gradient: Tensor) -> tuple[Tensor, ...]:
        found = _gradients[type(self.layer)](self.layer, x, output_gradient)
        shapes = {name: tuple(parameter.shape) for name, parameter in self.layer.named_parameters()}
        for name in self.parameters:
            if name not in found or tuple(found[name].shape) != shapes[name]:
                got = tuple(found[name].shape) if name in found else "none"
                layer = type(self.layer).__name__
                raise UsageError(f"the gradient of {layer}.{name} must have shape {shapes[name]}, got {got}.")
        return tuple(found[name] for name in self.parameters)


@contextmanager
def registered_layers(
    model: nn.Module,
    name_of: Callable[[Any], str | None],
    entered: Callable[[], None],
    left: Callable[[RegisteredLayerUse, dict[str, Any]], Any],
) -> Iterator[None]:
    """While active, calls `entered` before each registered layer of `model` runs and `left` for its output after."""
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
    layer: nn.Module, args: tuple[Any, ...], output: Any, name_of: Callable[[Any], str | None]
) -> tuple[RegisteredLayerUse, dict[str, Any]]:
    if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
        raise UsageError(f"a layer with a registered gradient maps one tensor to one: {type(layer).__name__} does not.")
    parameters = tuple(name for name, _ in layer.named_parameters())
    names = tuple(name_of(value) for _, value in layer.named_parameters())
    return RegisteredLayerUse(names, parameters, layer), {"input": args[0], "output": output}
