"""Views of parameters: an operation on a slice, a transpose or another view has the rule of one on a parameter.

The rule computes the gradient by the view, and `view_blocks` moves it to the place of the view within the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor


@dataclass(frozen=True)
class ParameterView:
    """A view of the parameter `name`, which has `size` values: element i is value `offset` + i * `strides`."""

    name: str
    size: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def strides_as(self, *shape: int) -> tuple[int, ...] | None:
        """The strides after a reshape that copies nothing, or None if there is none."""
        try:
            return torch.empty_strided(self.shape, self.strides, device="meta").view(shape).stride()
        except RuntimeError:
            return None

    def indices(self) -> Tensor:
        """For each element of the view, in order, its index in the parameter."""
        return torch.arange(self.size).as_strided(self.shape, self.strides, self.offset).flatten()


Name = str | ParameterView


def parameter_of(name: Name) -> str:
    """The name of the parameter of which this is a view, or which this is."""
    return name.name if isinstance(name, ParameterView) else name


_METHODS = (
    *("t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "unflatten", "flatten", "reshape"),
    *("view", "view_as", "reshape_as", "unsqueeze", "squeeze", "narrow", "select", "split", "split_with_sizes"),
    *("chunk", "tensor_split", "unbind", "expand", "expand_as", "broadcast_to", "contiguous", "__getitem__"),
)
_VIEWS = frozenset(
    (
        *(getattr(kind, name) for kind in (torch, Tensor) for name in _METHODS if hasattr(kind, name)),
        *(getattr(Tensor, name).__get__ for name in ("T", "mT")),
    )
)


class Names:
    """The names of parameters and of their views, by the identity of the tensor.

    Views are known if they were made by an operation that was noted: `detach` makes a view too, but no gradient passes.
    """

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self._parameters = parameters
        self._names: dict[int, Name] = {id(value): name for name, value in parameters.items()}
        self._alive: list[Tensor] = []  # so that no other tensor gets the identity of a view

    def of(self, value: Any) -> Name | None:
        """The name of a parameter or view, or None for any other value."""
        return self._names.get(id(value))

    def used(self, values: Iterable[Any]) -> list[str]:
        """The names of the parameters among `values` and of those whose views are, once for each."""
        names = (self._names.get(id(value)) for value in values)
        return [parameter_of(name) for name in names if name is not None]

    def note_views(self, function: Any, args: tuple[Any, ...], result: Any) -> bool:
        """Notes the results of an operation. Returns whether all of them are views of one parameter."""
        name = self._names.get(id(args[0])) if args and function in _VIEWS else None
        if name is None or self.used(args[1:]):
            return False
        parameter, results = self._parameters[parameter_of(name)], [result] if isinstance(result, Tensor) else result
        if not all(isinstance(x, Tensor) and _share_memory(parameter, x) for x in results):
            return False
        for x in results:
            offset = int(x.storage_offset() - parameter.storage_offset())
            view = ParameterView(parameter_of(name), parameter.numel(), tuple(x.shape), tuple(x.stride()), offset)
            self._names.setdefault(id(x), view)
            self._alive.append(x)
        return True


def _share_memory(parameter: Tensor, x: Tensor) -> bool:
    """Whether `x` is a view of a parameter that is contiguous in memory."""
    if is_functorch_wrapped_tensor(x) or not parameter.is_contiguous() or x.dtype != parameter.dtype or not x.numel():
        return False
    return x.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
