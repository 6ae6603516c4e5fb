"""Refuses the use of tensors that an earlier pass computed from rows.

A tensor of `vmap` that outlives it looks like a tensor of the next `vmap`: row `r` of an earlier micro-batch would be
taken for row `r` of the present one. Therefore each pass records its tensors. Those that are still alive when it ends
are refused from then on, wherever they are kept: in a closure, a default argument or a global variable.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
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


# Functions whose result is a Python value made of the values of a tensor.
_TEXTS = {Tensor.__repr__, Tensor.__format__}
_READS = {
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.is_nonzero, Tensor.__contains__),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__complex__, Tensor.__index__),
    *(Tensor.equal, Tensor.allclose, torch.equal, torch.allclose, torch.is_nonzero),
} | _TEXTS
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
        _refuse_earlier(tensors)
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


class PassOfOneRow(OnePass):
    """The tensors that the operations of a pass of one row computed from that row.

    `public` are those that every row is computed with. What is computed from public tensors only is public as well,
    and may be kept, such as a table of positions; so is the result of an operation without tensors.
    """

    def __init__(self, public: Iterable[Tensor]) -> None:
        super().__init__()
        self._public = {id(x): ref(x) for x in public}

    def computed(self, given: list[Tensor], made: list[Tensor]) -> None:
        """Records the results `made` of an operation on the tensors `given`."""
        is_public = all(self._is_public(x) for x in given)
        for x in made:
            if not is_public:
                self._public.pop(id(x), None)  # a public tensor into which values of the row were written
                self._own[id(x)] = ref(x)
            elif id(x) not in self._own:
                self._public[id(x)] = ref(x)

    def _is_public(self, x: Tensor) -> bool:
        known = self._public.get(id(x))
        return known is not None and known() is x


def _refuse_earlier(tensors: list[Tensor]) -> None:
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
    if function in _TEXTS:
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


@contextmanager
def one_row(public: Iterable[Tensor]) -> Iterator[PassOfOneRow]:
    """A pass of one row that ends with the `with` block. `public` are tensors that belong to no row."""
    tensors = PassOfOneRow(public)
    try:
        yield tensors
    finally:
        tensors.end()


class RowTracker(TorchFunctionMode):
    """While active, records which tensors are computed from the row of a pass, and refuses those of earlier rows.

    If the model may not read, taking a Python value from a tensor is refused: it could be kept for later rows.
    """

    def __init__(self, tensors: PassOfOneRow, *, may_read: bool) -> None:
        super().__init__()
        self._tensors, self._may_read = tensors, may_read

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((*args, *kwargs.values()))
        _refuse_earlier(given)
        if function in _READS and not self._may_read:
            raise UsageError(
                f"the model or its loss calls {getattr(function, '__name__', 'a function')} on a tensor of an example, "
                "which it did not do on synthetic ones: compute with tensors only."
            )
        result = filled(function, self.carried_out(function, args, kwargs))
        if isinstance(result, Tensor):
            self._tensors.computed(given, [result])
        elif result is None:  # it may have written to its first argument, as x[i] = y does
            self._tensors.computed(given, given[:1])
        elif isinstance(result, (tuple, list)):
            self._tensors.computed(given, tensors_in(result))
        return result

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the operation."""
        return function(*args, **kwargs)


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
