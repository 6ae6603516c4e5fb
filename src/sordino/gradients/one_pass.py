"""Tensors that one pass computed from rows cannot be used in a later one.

A tensor inside `vmap` that outlives it looks like one of the next `vmap`: row `r` of an earlier micro-batch would be
taken for row `r` of the present one. Each pass therefore notes its tensors, and those of them that are still there when
it ends are refused from then on, wherever they were kept: in a closure, a default argument, a global.
"""

from __future__ import annotations

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


class OnePass:
    """The tensors inside `vmap` that the operations of a pass were given or made.

    An address names one of them for as long as it lives, so that what outlives its pass cannot be taken for another.
    """

    def __init__(self) -> None:
        self._own: dict[int, ref[Tensor]] = {}

    def given(self, tensors: list[Tensor]) -> None:
        """Refuses tensors of earlier passes."""
        if _of_earlier_passes and any(id(x) in _of_earlier_passes for x in tensors):
            raise UsageError(
                "the model or its loss uses a tensor that it kept from rows that it saw before: one example would "
                "change what others contribute. Compute each output from its own example, and keep nothing."
            )
        for x in tensors:  # what an operation gave that nobody watches
            known = self._own.get(id(x))
            if (known is None or known() is not x) and is_functorch_wrapped_tensor(x):
                self._own[id(x)] = ref(x)

    def made(self, tensors: list[Tensor]) -> None:
        for x in tensors:
            if is_functorch_wrapped_tensor(x):
                self._own[id(x)] = ref(x)

    def end(self) -> None:
        for place, own in self._own.items():
            outliving = own()
            if outliving is not None:
                _of_earlier_passes[place] = ref(outliving, partial(_forget, place))


def refuse_own_rule(function: Any, args: tuple[Any, ...]) -> None:
    """Refuses a function with a `vmap` of its own: it is handed all rows at once, and could mix them unseen."""
    if function is not custom_function_call:
        return
    kind: Any = args[0]
    if kind.vmap is not torch.autograd.Function.vmap and not kind.__module__.startswith("sordino."):
        raise UsageError(
            f"{kind.__name__} has a vmap of its own, which sees all examples of a batch: leave it out, and set "
            "generate_vmap_rule = True."
        )


def _forget(place: int, _: object) -> None:
    del _of_earlier_passes[place]


@contextmanager
def one_pass() -> Iterator[OnePass]:
    """A pass, for as long as the block runs."""
    tensors = OnePass()
    try:
        yield tensors
    finally:
        tensors.end()


class TensorTracker(TorchFunctionMode):
    """Notes the tensors of every operation while active."""

    def __init__(self, tensors: OnePass | None = None) -> None:
        super().__init__()
        self._tensors = OnePass() if tensors is None else tensors

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        refuse_own_rule(function, args)
        self._tensors.given(tensors_in((*args, *kwargs.values())))
        result = self.carried_out(function, args, kwargs)
        self._tensors.made(tensors_in(result))
        return result

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the operation gives."""
        return function(*args, **kwargs)
