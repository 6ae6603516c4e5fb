"""Refuses the use of tensors that an earlier pass computed from rows.

A tensor of `vmap` that outlives it looks like a tensor of the next `vmap`: row `r` of an earlier micro-batch would be
taken for row `r` of the present one. Therefore each pass records its tensors. Those that are still alive when it ends
are refused from then on, wherever they are kept: in a closure, a default argument or a global variable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch.autograd_function import custom_function_call
from torch.overrides import TorchFunctionMode

from sordino.errors import UsageError
from sordino.gradients.operations import tensors_in

_of_earlier_passes: dict[int, ref[Tensor]] = {}


# Functions that write the values of a tensor as text.
TEXTS = {Tensor.__repr__, Tensor.__format__}
# Functions that return memory as they find it, which may hold values of other rows.
_UNFILLED = {torch.empty, torch.empty_like, torch.empty_strided, torch.empty_permuted}
_UNFILLED |= {Tensor.new_empty, Tensor.new_empty_strided, Tensor.new}


class OneRowAtATimeOnly(UsageError):
    """The model cannot be run on all rows together, inside `vmap`. Its rows can be run one at a time (`loop`)."""


class OnePass:
    """The `vmap` tensors that were arguments or results of the operations of one pass.

    They are identified by `id` with a weak reference, so that the `id` of a dead tensor is not taken for it.
    """

    def __init__(self) -> None:
        self._own: dict[int, ref[Tensor]] = {}

    def given(self, tensors: list[Tensor]) -> None:
        """Refuses tensors of earlier passes."""
        refuse_earlier(tensors)
        for x in tensors:  # results of operations that no `TorchFunctionMode` sees
            known = self._own.get(id(x))
            if (known is None or known() is not x) and is_functorch_wrapped_tensor(x):
                self._own[id(x)] = ref(x)

    def made(self, tensors: list[Tensor]) -> None:
        """Records the results of an operation."""
        for x in tensors:
            if is_functorch_wrapped_tensor(x):
                self._own[id(x)] = ref(x)

    def end(self) -> None:
        """Marks the tensors that are still alive as those of an earlier pass."""
        for number, own in self._own.items():
            alive = own()
            if alive is not None:
                _of_earlier_passes[number] = ref(alive, partial(_remove, number))


def refuse_earlier(tensors: list[Tensor]) -> None:
    if _of_earlier_passes and any(id(x) in _of_earlier_passes for x in tensors):
        raise UsageError(
            "the model or its loss uses a tensor that it kept from earlier rows: one example would change what "
            "others contribute. Compute each output from its own example, and keep no tensor."
        )


def refuse_own_rule(function: Any, args: tuple[Any, ...]) -> None:
    """Refuses a function with a `vmap` method of its own, which gets all rows at once and could mix them."""
    if function is not custom_function_call:
        return
    kind: Any = args[0]
    if kind.vmap is not torch.autograd.Function.vmap and not _is_of_sordino(kind):
        raise OneRowAtATimeOnly(
            f"{kind.__name__} has a vmap method of its own, which gets all examples of a batch: remove it, and set "
            "generate_vmap_rule = True."
        )


def _is_of_sordino(kind: type) -> bool:
    """Whether a class is one of this library, and does not just say so."""
    module = sys.modules.get(kind.__module__) if kind.__module__.startswith("sordino.") else None
    return getattr(module, kind.__qualname__, None) is kind


def refuse_text(function: Any) -> None:
    """Refuses to write a tensor of `vmap` as text, which shows the values of all rows."""
    if function in TEXTS:
        raise OneRowAtATimeOnly("the text of a tensor shows the values of all examples: do not print or format it.")


def filled(function: Any, result: Any) -> Any:
    """The result of an operation, with zeros in it if it is memory that was not written to."""
    if function in _UNFILLED:
        for x in tensors_in(result):
            x.zero_()
    return result


def _remove(number: int, _: object) -> None:
    del _of_earlier_passes[number]


@contextmanager
def one_pass() -> Iterator[OnePass]:
    """A pass that ends with the `with` block."""
    tensors = OnePass()
    try:
        yield tensors
    finally:
        tensors.end()


class TensorTracker(TorchFunctionMode):
    """While active, records the tensors of each operation for a pass."""

    def __init__(self, tensors: OnePass | None = None) -> None:
        super().__init__()
        self._tensors = OnePass() if tensors is None else tensors

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        refuse_own_rule(function, args)
        refuse_text(function)
        self._tensors.given(tensors_in((*args, *kwargs.values())))
        result = filled(function, self.carried_out(function, args, kwargs))
        self._tensors.made(tensors_in(result))
        return result

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the operation."""
        return function(*args, **kwargs)
