"""Per-example gradients of any model by `vmap`, over the gradient of a batch of one.

Guarantee: a row's gradient is computed by a function of that row, its seed and the parameters, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from sordino.gradients.fused_kernels import one_hot
from sordino.gradients.one_pass import TensorTracker, one_pass
from sordino.gradients.recurrent import OwnInitialState
from sordino.gradients.row_randomness import RowRandomness
from sordino.gradients.torch_state import call, original, pinned, working_dtype

Objective = Callable[[Any, Tensor], tuple[Tensor, Tensor]]
Result = TypeVar("Result")


def gradients_of_rows(
    model: nn.Module,
    objective: Objective,
    inputs: tuple[Tensor, ...],
    target: Tensor,
    seeds: Tensor,
    autocast: torch.dtype | None = None,
    names: tuple[str, ...] = (),
) -> tuple[list[Tensor], Tensor]:
    """Gradients of each row by each trainable parameter, shape (rows, *parameter), and a mask of the usable rows.

    `objective(outputs, target)` gets a batch of one and returns (loss, usable), two scalars. `names` are the arguments
    of `forward` that get the inputs; without names, inputs go by position.
    """
    model = original(model)
    trained, fixed, dtype = trained_values(model), fixed_values(model), working_dtype(model)

    def loss_of_one(
        parameters: dict[str, Tensor], row: tuple[Tensor, ...], label: Tensor, zero: Tensor
    ) -> tuple[Tensor, Tensor]:
        with _Tracker(tensors), OwnInitialState(zero):
            outputs = call(model, {**fixed, **parameters}, tuple(x.unsqueeze(0) for x in row), names)
            return objective(outputs, label.unsqueeze(0))

    def attempt(randomness: str) -> tuple[dict[str, Tensor], Tensor]:
        of_each = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0, 0), randomness=randomness)
        rows = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
        labels = target.to(dtype) if target.is_floating_point() else target
        gradients, usable = of_each(trained, rows, labels, torch.zeros(len(seeds), device=seeds.device))
        return gradients, usable

    with pinned(model, autocast), one_pass() as tensors:
        gradients, usable = drawing_by_row(attempt, seeds)
    return list(gradients.values()), usable


class _Tracker(TensorTracker):
    """Also carries out `one_hot` without reading values."""

    def carried_out(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = one_hot(function, args, kwargs)
        return super().carried_out(function, args, kwargs) if result is None else result


def trained_values(model: nn.Module) -> dict[str, Tensor]:
    """Copies of the trainable parameters, in the order of the layout."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def fixed_values(model: nn.Module) -> dict[str, Tensor]:
    """Copies of frozen parameters and buffers, so that nothing computed from data can be written into the model."""
    fixed = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    return fixed | {name: buffer.detach().clone() for name, buffer in model.named_buffers()}


def drawing_by_row(attempt: Callable[[str], Result], seeds: Tensor) -> Result:
    """`attempt(randomness)`, in which each row draws from its own seed. `randomness` is the argument of `vmap`."""
    try:
        return attempt("error")  # most models draw nothing, and are faster without `RowRandomness`
    except RuntimeError as error:
        if "randomness error mode" not in str(error):
            raise
    with RowRandomness(seeds):
        return attempt("different")
