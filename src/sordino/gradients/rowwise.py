"""Operations known to act on each row alone, run on all rows at once instead of by the batching rules of `vmap`.

The rules of `vmap` are correct, but some are slow: they decompose a fused kernel, or copy. Here torch differentiates
the operation on all rows, as in plain training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:  # these names are private to torch; if a version has renamed them, the slower public `vmap` is used
    from torch._C._functorch import _add_batch_dim, _remove_batch_dim, _unwrap_batched, peek_interpreter_stack
    from torch._functorch.autograd_function import VmapInfo
    from torch._functorch.predispatch import lazy_load_decompositions
    from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_current_functorch_interpreter
    from torch._functorch.vmap import vmap_increment_nesting

    HAS_FAST_VMAP = True
except ImportError:
    HAS_FAST_VMAP = False


def mapped(of_one: Callable[..., list[Tensor]], tensors: list[Tensor], rows: int, randomness: str) -> list[Tensor]:
    """`vmap(of_one)(*tensors)` over the first axis, which has length `rows` in each tensor.

    The public `vmap` flattens and checks trees of arguments, which costs more than the products of a small layer.
    """
    if not HAS_FAST_VMAP:
        return torch.vmap(of_one, randomness=randomness)(*tensors)
    lazy_load_decompositions()
    with vmap_increment_nesting(rows, randomness) as level:
        results = of_one(*(_add_batch_dim(x, 0, level) for x in tensors))
        return [_remove_batch_dim(x, level, rows, 0) for x in results]


def on_rows(of_one: Callable[..., Any], of_rows: Callable[..., Any], x: Tensor, *others: Tensor | None) -> Any:
    """`of_one(x, *others)`; under `vmap`, `of_rows(x, *others)`, with the rows as first axis of `x` and of all results.

    The caller must know that row `r` of `of_rows` is `of_one` of row `r`. If `others` have rows too, `vmap` itself is
    used.
    """
    return apply(_OnRows, of_one, of_rows, x, *others)


def apply(function: type[torch.autograd.Function], *operands: Any) -> Any:
    """`function.apply`; under `vmap`, a direct call of `function.vmap`.

    Torch makes this call too, but binds a signature and flattens trees before, which costs more than the products of a
    small layer. Operands are tensors, or values that do not depend on rows. The result is a tensor, or a tuple of
    tensors with the rows along one axis.
    """
    if not HAS_FAST_VMAP or peek_interpreter_stack() is None:
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
        """Saves nothing: outside of `vmap`, only a survey calls this function, and differentiates nothing."""

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, ...], of_one: Any, of_rows: Any, x: Tensor, *others: Any) -> Any:
        axis, *other_axes = axes[2:]
        if axis is None or any(other is not None for other in other_axes):
            return torch.vmap(of_one, in_dims=axes[2:])(x, *others), 0
        return of_rows(x.movedim(axis, 0), *others), 0


def merged(function: Callable[..., Tensor], batched_axes: int) -> Callable[..., Tensor]:
    """`function` of a batch, as a function of inputs whose rows come before the batch axis: both become one axis.

    `batched_axes` is the number of axes of an input of `function` with a batch axis.
    """

    def of_rows(x: Tensor, *others: Any) -> Tensor:
        if x.ndim == batched_axes:  # a single example without a batch axis: the rows are the batch
            return function(x, *others)
        output = function(x.flatten(0, 1), *others)
        return output.reshape(*x.shape[:2], *output.shape[1:])

    return of_rows
