"""Checks on synthetic inputs that a model treats each example alone, with an error that names the layer at fault.

Privacy does not rest on these checks: gradients are computed for one row at a time, so a model that mixes examples
still has its sensitivity. But it would not train as its author meant, and a model that keeps state would fail in the
middle of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.utils._pytree import tree_leaves, tree_map

from sordino.errors import UsageError
from sordino.gradients.probes import called, calls_of, forward, one_line
from sordino.gradients.row_loss import Loss, RowLoss, logits_of
from sordino.gradients.torch_state import original, pinned, working_dtype
from sordino.kernel.records import Batch


def check_model(model: nn.Module) -> None:
    """Refuses a model for reasons that can be found without running it.

    >>> check_model(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    Traceback (most recent call last):
        ...
    sordino.errors.UsageError: layer '1' (BatchNorm1d) mixes the examples of a batch: use \
sordino.replace_batchnorm(model), or public statistics in eval mode.
    """
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UsageError(f"parameter {name!r} has no shape yet: run the model once on synthetic inputs.")
        if parameter._backward_hooks:
            raise UsageError(
                f"parameter {name!r} has a gradient hook, which is not run for single examples: remove the hook."
            )
    working_dtype(model)
    _refuse_devices(model)
    for name, module in original(model).named_modules():
        for refused, reason in _refusals(module):
            if refused:
                raise UsageError(f"{called(name, module)} {reason}.")


def _refuse_devices(model: nn.Module) -> None:
    """Refuses devices other than one of CPU or CUDA, where the precision of norms, which are float64, is known."""
    devices = sorted({str(parameter.device) for parameter in model.parameters()})
    if len(devices) > 1:
        raise UsageError(f"all parameters must be on one device, got {' and '.join(devices)}.")
    if torch.device(devices[0]).type not in ("cpu", "cuda"):
        raise UsageError(f"the model must be on cpu or cuda, got {devices[0]}: move it with model.to(...).")


def check_isolation(model: nn.Module, loss: Loss, batch: Batch, autocast: torch.dtype | None = None) -> None:
    """Refuses a model or loss in which one example affects another, and a model that changes its own state.

    `batch` is synthetic and has three rows or more. The last row replaces each of the others in turn, and only the
    outputs and gradients of the replaced row may change. The model is left as it was.
    """
    model, row_loss = original(model), RowLoss.of(loss)
    with pinned(model, autocast), torch.enable_grad():
        before = batch.take(slice(0, -1))
        outputs = logits_of(forward(model, before.inputs, before.names))
        _refuse_outputs_without_rows(model, outputs, before)
        if not _same_rows(outputs, logits_of(forward(model, before.inputs, before.names)), range(_rows(before))):
            raise UsageError(
                "the model gives different outputs for equal inputs: it keeps state outside its buffers, or draws from "
                "a generator of its own. Remove the state, and draw by torch.rand and the like."
            )
        row_loss.check_targets(outputs, before.target)
        gradient = _loss_gradient(row_loss, outputs, before)
        for replaced in range(_rows(before)):
            others = [row for row in range(_rows(before)) if row != replaced]
            after = _with_row_replaced(batch, replaced)
            changed = logits_of(forward(model, after.inputs, after.names))
            if not _same_rows(outputs, changed, others):
                layer = _first_mixing(model, before, after, others)
                raise UsageError(f"{layer} mixes the examples of a batch: compute each output from its own example.")
            if not _same_rows(gradient, _loss_gradient(row_loss, changed, after), others):
                raise UsageError(
                    "the loss mixes the examples of a batch: write it as a sum over examples, or use a loss with an "
                    "argument `reduction`, such as functools.partial(F.cross_entropy, weight=...)."
                )
        _refuse_other_shape_alone(model, outputs, before)


def _refusals(module: nn.Module) -> Iterator[tuple[bool, str]]:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        batch_statistics = module.training or module.running_mean is None
        yield (
            batch_statistics,
            "mixes the examples of a batch: use sordino.replace_batchnorm(model), or public statistics in eval mode",
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        keeps_statistics = module.training and module.track_running_stats
        yield keeps_statistics, "keeps running statistics of the data: use track_running_stats=False"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        yield module.sparse, "has sparse gradients, whose pattern shows which ids were drawn: use sparse=False"
        yield module.max_norm is not None, "rescales its weights when they are looked up: use max_norm=None"
    if isinstance(module, _SpectralNorm):  # running the model would not show it once the power iteration has converged
        yield module.training, "changes its buffer '_u' in each forward pass: put it into eval mode, or remove it"
    if isinstance(module, nn.RReLU):
        yield module.training, "draws random slopes that cannot be seeded per example: use nn.LeakyReLU"
    if isinstance(module, torch.jit.ScriptModule):
        yield True, "is compiled by torch.jit, and what it keeps cannot be seen: use the module that it was made from"
    has_hook = bool(module._backward_hooks or module._backward_pre_hooks)
    yield has_hook, "has a backward hook, which is not run for single examples: remove the hook"


def _rows(batch: Batch) -> int:
    return len(batch.target)


def _with_row_replaced(batch: Batch, replaced: int) -> Batch:
    """All rows but the last, with row `replaced` replaced by it. Integers of that row change from 0 to 1 or back."""
    before, spare = batch.take(slice(0, -1)), batch.take(slice(-1, None))

    def changed(values: Tensor, other: Tensor) -> Tensor:
        values = values.clone()
        values[replaced] = other[0] if values.is_floating_point() else 1 - values[replaced].to(torch.int64)
        return values

    inputs = tuple(changed(x, y) for x, y in zip(before.inputs, spare.inputs, strict=True))
    return replace(before, inputs=inputs, target=changed(before.target, spare.target))


def _same_rows(one: Any, other: Any, kept: Sequence[int]) -> bool:
    """Whether the rows `kept` are equal, up to rounding, in all tensors that have these rows."""
    first, second = ([x for x in tree_leaves(values) if isinstance(x, Tensor)] for values in (one, other))
    if [x.shape for x in first] != [x.shape for x in second]:
        return False
    for a, b in zip(first, second, strict=True):
        if a.ndim > 0 and len(a) > max(kept):
            a, b = (x[list(kept)].detach().to(torch.float64) for x in (a, b))
            if not torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True):
                return False
    return True


def _first_mixing(model: nn.Module, before: Batch, after: Batch, others: Sequence[int]) -> str:
    first, second = calls_of(model, before.inputs, before.names), calls_of(model, after.inputs, after.names)
    for one, other in zip(first, second, strict=False):  # a branch may leave layers out
        if _same_rows(one.inputs, other.inputs, others) and not _same_rows(one.outputs, other.outputs, others):
            return one.layer
    return "the model"


def _refuse_outputs_without_rows(model: nn.Module, outputs: Any, batch: Batch) -> None:
    tensors = [x for x in tree_leaves(outputs) if isinstance(x, Tensor)]
    shapes = [tuple(x.shape) for x in tensors if x.ndim == 0 or len(x) != _rows(batch)]
    if shapes or not tensors:
        output = f"shape {shapes[0]}" if shapes else "no tensor"
        raise UsageError(
            f"{called('', model)} must give one output per example, got {output} for {_rows(batch)} examples."
        )


def _loss_gradient(loss: RowLoss, outputs: Any, batch: Batch) -> list[Tensor]:
    outputs = tree_map(_leaf, outputs)
    leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
    try:
        value = loss.summed(outputs, batch.target)
    except Exception as error:
        raise UsageError(f"the loss fails on synthetic outputs: {one_line(error)}") from error
    value = loss.single(value)
    gradients = torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else ()
    if all(gradient is None for gradient in gradients):
        raise UsageError("the loss has no gradient: it must be a differentiable function of the model's outputs.")
    return [x for x in gradients if x is not None]


def _leaf(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.is_floating_point())


def _refuse_other_shape_alone(model: nn.Module, outputs: Any, batch: Batch) -> None:
    alone = logits_of(forward(model, batch.take(slice(0, 1)).inputs, batch.names))
    for one, many in zip(tree_leaves(alone), tree_leaves(outputs), strict=True):
        if isinstance(one, Tensor) and one.shape != many[:1].shape:
            raise UsageError(
                f"{called('', model)} gives shape {tuple(one.shape)} for a batch of one, expected "
                f"{tuple(many[:1].shape)}: name the axis to squeeze, as in squeeze(-1)."
            )
