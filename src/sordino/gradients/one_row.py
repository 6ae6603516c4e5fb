"""What the pass of a single row may do: it may use no tensor of another row, and write into no tensor that others use.

Outside of `vmap` a tensor of a row looks like any other, so tensors are followed through the operations of a pass. They
are public (parameters, buffers, and what is computed from public tensors only), the row's own (inputs, and what is
computed from anything else), or foreign: tensors from before the pass, such as constants in attributes and globals.

* Tensors of the row that are alive when its pass ends are refused in later passes.
* Values that are not public may be written only into memory that was made in this pass.
* A model that may not read (it runs on many rows together, where it could not) is refused a Python value of a row.

A Python value that a model reads and keeps in a global variable is not seen. `loop.RUNS_ALONE` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode

from sordino.errors import UsageError
from sordino.gradients.one_pass import TEXTS, OnePass, filled, refuse_earlier
from sordino.gradients.operations import tensors_in

# Functions whose result is a Python value made of the values of a tensor.
_READS = {
    *(Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.is_nonzero, Tensor.__contains__),
    *(Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__complex__, Tensor.__index__),
    *(Tensor.equal, Tensor.allclose, torch.equal, torch.allclose, torch.is_nonzero),
} | TEXTS
_DATA: Any = Tensor.data
_HOOKS = {Tensor.register_hook, Tensor.register_post_accumulate_grad_hook}
_WRITES = {"__setitem__", "set_", "__set__"}
_WRITES |= {f"__i{name}__" for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split()}


class PassOfOneRow(OnePass):
    """The tensors of the pass of one row. `public` are those that every row is computed with."""

    def __init__(self, public: Iterable[Tensor]) -> None:
        super().__init__()
        given = list(public)
        self._public = {id(x): ref(x) for x in given}
        self._of_others = {_address(x) for x in given} - {0}
        self.foreign_leaves: dict[int, Tensor] = {}  # a backward pass would write to their `grad`

    def own(self, tensors: Iterable[Tensor]) -> None:
        """Records tensors of the row that no operation made: its inputs, and gradients that a hook gets."""
        for x in tensors:
            self._own[id(x)] = ref(x)

    def is_public(self, tensors: list[Tensor]) -> bool:
        """Whether all of these are public. Memory of the others, if no operation of this pass made them, is foreign."""
        public = True
        for x in tensors:
            if not _is(self._public.get(id(x)), x):
                public = False
                if not _is(self._own.get(id(x)), x):
                    self._of_others.add(_address(x))
                    if x.is_leaf and x.requires_grad:
                        self.foreign_leaves[id(x)] = x
        return public

    def refuse_write(self, into: Tensor) -> None:
        """Refuses to write values that are not public into memory that other rows use."""
        if _address(into) in self._of_others - {0}:
            raise UsageError(
                "the model writes values of an example into a parameter, a buffer or a tensor from before, which other "
                "examples use: compute a new tensor instead."
            )

    def made(self, tensors: list[Tensor], from_public: bool = False) -> None:
        """Records the results of an operation."""
        known, other = (self._public, self._own) if from_public else (self._own, self._public)
        for x in tensors:
            if not (from_public and _is(self._own.get(id(x)), x)):
                other.pop(id(x), None)  # also if the id was that of a tensor that is gone
                known[id(x)] = ref(x)


def _is(known: ref[Tensor] | None, x: Tensor) -> bool:
    return known is not None and known() is x


def _address(x: Tensor) -> int:
    """The address of the memory that a tensor shares with its views, or 0 if it has none of its own."""
    if x.layout != torch.strided or is_functorch_wrapped_tensor(x):
        return 0
    return x.untyped_storage().data_ptr()


def _version(x: Tensor) -> int:
    """The number of writes to a tensor. An inference tensor does not count them, and cannot be written to."""
    return 0 if x.is_inference() else x._version


@contextmanager
def one_row(public: Iterable[Tensor]) -> Iterator[PassOfOneRow]:
    """A pass of one row that ends with the `with` block. `public` are tensors that belong to no row."""
    tensors = PassOfOneRow(public)
    try:
        yield tensors
    finally:
        tensors.end()


class RowTracker(TorchFunctionMode):
    """While active, follows the tensors of a pass, and refuses what the head of this module says."""

    def __init__(self, tensors: PassOfOneRow, *, may_read: bool) -> None:
        super().__init__()
        self._tensors, self._may_read = tensors, may_read

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, tensors = kwargs or {}, self._tensors
        given = tensors_in((*args, *kwargs.values()))
        refuse_earlier(given)
        is_public = tensors.is_public(given)
        if not is_public:
            self._check(function, given, kwargs)
        if function in _HOOKS:
            args = (args[0], self._seen(args[1]), *args[2:])
        if function is _DATA.__get__:  # shares the version with the tensor, so that no write goes unnoticed
            function = Tensor.detach
            args = args[:1]
        versions = [_version(x) for x in given]
        result = filled(function, self.carried_out(function, args, kwargs))
        written = [x for x, version in zip(given, versions, strict=True) if _version(x) != version]
        if not is_public:
            for x in written:  # not by the name of the function, but by an argument such as inplace=True
                tensors.refuse_write(x)
        # A result that is an argument as it was, as x.to(x.device) is, stays what it was.
        fresh = [x for x in tensors_in(result) if not any(x is one for one in given)]
        tensors.made([*written, *fresh], is_public)
        return result

    def _check(self, function: Any, given: list[Tensor], kwargs: dict[str, Any]) -> None:
        """Refuses an operation on tensors that are not all public before it is carried out."""
        name = getattr(function, "__name__", "")
        if function in _READS and not self._may_read:
            raise UsageError(
                f"the model or its loss calls {name} on a tensor of an example, which it did not do on synthetic ones: "
                "compute with tensors only."
            )
        if isinstance(kwargs.get("out"), Tensor):
            self._tensors.refuse_write(kwargs["out"])
        is_in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
        if is_in_place and given:
            self._tensors.refuse_write(given[0])

    def _seen(self, hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """A hook whose gradients belong to the row."""

        @wraps(hook)
        def seen(gradient: Tensor) -> Any:
            self._tensors.own([gradient])
            return hook(gradient)

        return seen

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the operation."""
        return function(*args, **kwargs)
