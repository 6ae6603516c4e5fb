"""Cross-entropy of all rows by the kernel of plain training: `vmap` would take it apart into a dozen operations.

The loss of an example is a sum over its labels, and those of a batch are apart: what torch gives without a reduction,
added up within each row, is what it gives for the rows one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sordino.gradients.one_pass import Noting
from sordino.gradients.rowwise import apply

_ARGUMENTS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")


class CrossEntropyOfRows(Noting):
    """While active, a summed `cross_entropy` of a batch of one inside `vmap` is computed for all rows at once."""

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is not F.cross_entropy:
            return function(*args, **kwargs)
        given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        outputs, target = given.pop("input"), given.pop("target")
        is_sum = given.get("reduction") == "sum" and given.get("size_average") is None and given.get("reduce") is None
        if not is_sum or outputs.ndim < 2 or len(outputs) != 1:
            return function(*args, **kwargs)
        return apply(
            _Summed,
            lambda x, labels, reduction: F.cross_entropy(x, labels, **{**given, "reduction": reduction}),
            outputs,
            target,
        )


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(loss: Callable[..., Tensor], outputs: Tensor, target: Tensor) -> Tensor:
        return loss(outputs, target, "sum")

    @staticmethod
    def setup_context(context: Any, inputs: Any, output: Any) -> None:
        """Never differentiated: under `vmap` torch differentiates what `vmap` below computes."""

    @staticmethod
    def vmap(
        info: Any, axes: tuple[int | None, ...], loss: Callable[..., Tensor], outputs: Tensor, target: Tensor
    ) -> tuple[Tensor, int]:
        _, of_outputs, of_target = axes
        if of_outputs is None or of_target is None:
            each = torch.vmap(lambda x, labels: loss(x, labels, "sum"), in_dims=(of_outputs, of_target))
            return each(outputs, target), 0
        outputs, target = (x.movedim(axis, 0).flatten(0, 1) for x, axis in ((outputs, of_outputs), (target, of_target)))
        return loss(outputs, target, "none").reshape(info.batch_size, -1).sum(dim=1), 0
