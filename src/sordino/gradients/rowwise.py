"""Operations known to act on each row alone, carried out on all rows at once instead of by `vmap`'s own rules.

Those are right too, but some are slow: they take a fused kernel apart, or copy. Here torch differentiates what it is
given, as in plain training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:  # torch keeps these names to itself, and may rename them: then rows are taken one by one, which is slow
    from torch._C._functorch import _add_batch_dim, _remove_batch_dim, _unwrap_batched, peek_interpreter_stack
    from torch._functorch.autograd_function import VmapInfo
    from torch._functorch.predispatch import lazy_load_decompositions
    from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
    from torch._functorch.vmap import vmap_increment_nesting

    SHORT_WAY = True
except ImportError:
    SHORT_WAY = False


def mapped(of_one: Callable[..., list[Tensor]], tensors: list[Tensor], rows: int, randomness: str) -> list[Tensor]:
    """`vmap(of_one)(*tensors)` over the first axes, of which each has `rows` rows.

    Torch's own takes trees of arguments apart and checks them, which costs more than a small layer's products.
    """
    if not SHORT_WAY:
        return torch.vmap(of_one, randomness=randomness)(*tensors)
    lazy_load_decompositions()
    with vmap_increment_nesting(rows, randomness) as level:
        results = of_one(*(_add_batch_dim(x, 0, level) for x in tensors))
        return [_remove_batch_dim(x, level, rows, 0) for x in results]


def on_rows(of_one: Callable[..., Any], of_rows: Callable[..., Any], x: Tensor, *others: Tensor | None) -> Any:
    """`of_one(x, *others)`, and under `vmap` `of_rows(x, *others)` with the rows in front of `x` and of all it gives.

    The caller knows that row `r` of `of_rows` is `of_one` of row `r`. Where the others belong to the rows too, `vmap`
    has its own way.
    """
    return apply(_OnRows, of_one, of_rows, x, *others)


def apply(function: type[torch.autograd.Function], *operands: Any) -> Any:
    """`function.apply`, and under `vmap` straight to `function.vmap`.

    Torch gets there as well, but binds a signature and takes trees apart on the way, which costs more than a small
    layer's products. Operands are tensors, or whatever is not of a row; the result is a tensor, or a tuple of tensors
    with the rows along the same axis.
    """
    if not SHORT_WAY or peek_interpreter_stack() is None:
        return function.apply(*operands)  # type: ignore[no-untyped-call]
    around = retrieve_current_functorch_interpreter()
    if not isinstance(around, VmapInterpreter):
        return function.apply(*operands)  # type: ignore[no-untyped-call]
    level = around.level()
    split = [_unwrap_batched(x, level) if isinstance(x, Tensor) else (x, None) for x in operands]
    values, axes = zip(*split, strict=True)
    with around.lower():
        if all(axis is None for axis in axes):
            return apply(function, *operands)
        info = VmapInfo(around.batch_size(), around.randomness())
        result, axis = function.vmap(info, axes, *values)  # type: ignore[no-untyped-call]
    if isinstance(result, Tensor):
        return _add_batch_dim(result, axis, level)
    return tuple(_add_batch_dim(x, axis, level) for x in result)


class _OnRows(torch.autograd.Function):
    @staticmethod
    def forward(of_one: Any, of_rows: Any, x: Tensor, *others: Tensor | None) -> Any:
        return of_one(x, *others)

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        """Outside of `vmap` only a survey calls it, which differentiates nothing."""

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], of_one: Any, of_rows: Any, x: Tensor, *others: Any) -> Any:
        axis, *other_axes = axes[2:]
        if axis is None or any(other is not None for other in other_axes):
            return torch.vmap(of_one, in_dims=axes[2:])(x, *others), 0
        return of_rows(x.movedim(axis, 0), *others), 0


def merged(function: Callable[..., Tensor], batched_axes: int) -> Callable[..., Tensor]:
    """`function` of a batch, for inputs that have the rows in front of what may be a batch: the two become one.

    `batched_axes` is the number of axes of an input that has a batch axis.
    """

    def of_rows(x: Tensor, *others: Any) -> Tensor:
        if x.ndim == batched_axes:  # a single example without a batch axis: the rows are the batch
            return function(x, *others)
        output = function(x.flatten(0, 1), *others)
        return output.reshape(*x.shape[:2], *output.shape[1:])

    return of_rows
